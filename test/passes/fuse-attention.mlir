// RUN: %gristmill-opt %s --pass-pipeline="fuse,fuse-attention,dce-hlo" --split-input-file | filecheck %s

// Two products and the softmax between them become one kernel.
// CHECK-LABEL: func.func public @main
// CHECK-NEXT:    %[[F:.*]] = "hlov.fusion"(%arg0, %arg1, %arg2) {calls = @[[BODY:.*]], kind = "attention"}
// CHECK-NEXT:    return %[[F]]
// CHECK:       func.func private @[[BODY]]
// CHECK:         "hlo.dot_general"(%arg0, %arg1)
// CHECK:         "hlov.reduce"
// CHECK:         "hlo.exponential"
// CHECK:         "hlov.reduce"
// CHECK:         %[[W:.*]] = "hlo.divide"
// CHECK-NEXT:    "hlo.dot_general"(%[[W]], %arg2)
func.func public @main(%q: tensor<2x32x8xf32>, %k: tensor<2x48x8xf32>, %v: tensor<2x48x8xf32>) -> tensor<2x32x8xf32> {
  %n = "hlo.constant"() {value = dense<0xFF800000> : tensor<f32>} : () -> tensor<f32>
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.dot_general"(%q, %k) {lhs_batching_dimensions = array<i64: 0>, rhs_batching_dimensions = array<i64: 0>, lhs_contracting_dimensions = array<i64: 2>, rhs_contracting_dimensions = array<i64: 2>, precision = ""} : (tensor<2x32x8xf32>, tensor<2x48x8xf32>) -> tensor<2x32x48xf32>
  %1 = "hlov.reduce"(%0, %n) {dimensions = array<i64: 2>, to_apply = @max} : (tensor<2x32x48xf32>, tensor<f32>) -> tensor<2x32xf32>
  %2 = "hlo.broadcast_in_dim"(%1) {dimensions = array<i64: 0, 1>} : (tensor<2x32xf32>) -> tensor<2x32x48xf32>
  %3 = "hlo.subtract"(%0, %2) : (tensor<2x32x48xf32>, tensor<2x32x48xf32>) -> tensor<2x32x48xf32>
  %4 = "hlo.exponential"(%3) : (tensor<2x32x48xf32>) -> tensor<2x32x48xf32>
  %5 = "hlov.reduce"(%4, %z) {dimensions = array<i64: 2>, to_apply = @sum} : (tensor<2x32x48xf32>, tensor<f32>) -> tensor<2x32xf32>
  %6 = "hlo.broadcast_in_dim"(%5) {dimensions = array<i64: 0, 1>} : (tensor<2x32xf32>) -> tensor<2x32x48xf32>
  %7 = "hlo.divide"(%4, %6) : (tensor<2x32x48xf32>, tensor<2x32x48xf32>) -> tensor<2x32x48xf32>
  %8 = "hlo.dot_general"(%7, %v) {lhs_batching_dimensions = array<i64: 0>, rhs_batching_dimensions = array<i64: 0>, lhs_contracting_dimensions = array<i64: 2>, rhs_contracting_dimensions = array<i64: 1>, precision = ""} : (tensor<2x32x48xf32>, tensor<2x48x8xf32>) -> tensor<2x32x8xf32>
  return %8 : tensor<2x32x8xf32>
}
func.func private @max(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.maximum"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Scores that are returned as well must be in memory anyway.
// CHECK-LABEL: func.func public @main
// CHECK-NOT:     kind = "attention"
// CHECK:         return
func.func public @main(%q: tensor<2x32x8xf32>, %k: tensor<2x48x8xf32>, %v: tensor<2x48x8xf32>) -> (tensor<2x32x8xf32>, tensor<2x32x48xf32>) {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.dot_general"(%q, %k) {lhs_batching_dimensions = array<i64: 0>, rhs_batching_dimensions = array<i64: 0>, lhs_contracting_dimensions = array<i64: 2>, rhs_contracting_dimensions = array<i64: 2>, precision = ""} : (tensor<2x32x8xf32>, tensor<2x48x8xf32>) -> tensor<2x32x48xf32>
  %1 = "hlov.reduce"(%0, %z) {dimensions = array<i64: 2>, to_apply = @sum} : (tensor<2x32x48xf32>, tensor<f32>) -> tensor<2x32xf32>
  %2 = "hlo.broadcast_in_dim"(%1) {dimensions = array<i64: 0, 1>} : (tensor<2x32xf32>) -> tensor<2x32x48xf32>
  %3 = "hlo.divide"(%0, %2) : (tensor<2x32x48xf32>, tensor<2x32x48xf32>) -> tensor<2x32x48xf32>
  %4 = "hlo.dot_general"(%3, %v) {lhs_batching_dimensions = array<i64: 0>, rhs_batching_dimensions = array<i64: 0>, lhs_contracting_dimensions = array<i64: 2>, rhs_contracting_dimensions = array<i64: 1>, precision = ""} : (tensor<2x32x48xf32>, tensor<2x48x8xf32>) -> tensor<2x32x8xf32>
  return %4, %0 : tensor<2x32x8xf32>, tensor<2x32x48xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Two layers with a normalisation between them are no attention: their blocks of rows would share nothing small.
// CHECK-LABEL: func.func public @main
// CHECK-NOT:     kind = "attention"
// CHECK:         return
func.func public @main(%x: tensor<32x8xf32>, %a: tensor<8x48xf32>, %b: tensor<48x8xf32>) -> tensor<32x8xf32> {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.dot_general"(%x, %a) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>, precision = ""} : (tensor<32x8xf32>, tensor<8x48xf32>) -> tensor<32x48xf32>
  %1 = "hlov.reduce"(%0, %z) {dimensions = array<i64: 1>, to_apply = @sum} : (tensor<32x48xf32>, tensor<f32>) -> tensor<32xf32>
  %2 = "hlo.broadcast_in_dim"(%1) {dimensions = array<i64: 0>} : (tensor<32xf32>) -> tensor<32x48xf32>
  %3 = "hlo.divide"(%0, %2) : (tensor<32x48xf32>, tensor<32x48xf32>) -> tensor<32x48xf32>
  %4 = "hlo.dot_general"(%3, %b) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>, precision = ""} : (tensor<32x48xf32>, tensor<48x8xf32>) -> tensor<32x8xf32>
  return %4 : tensor<32x8xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
