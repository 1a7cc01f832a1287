// RUN: %gristmill-opt %s --pass-pipeline="fuse,dce-hlo" --split-input-file | filecheck %s

// A chain of elementwise operations becomes one loop kernel.
// CHECK-LABEL: func.func public @main
// CHECK:         %[[F:.*]] = "hlov.fusion"(%arg0, %arg1) {calls = @fused_computation_0, kind = "loop"}
// CHECK-NEXT:    return %[[F]]
// CHECK:       func.func private @fused_computation_0
// CHECK:         "hlo.add"
// CHECK-NEXT:    "hlo.tanh"
func.func public @main(%a: tensor<8x16xf32>, %b: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "hlo.add"(%a, %b) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "hlo.tanh"(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// -----

// A reduction of the minor dimension and its users are one row kernel.
// CHECK-LABEL: func.func public @main
// CHECK:         "hlov.fusion"(%arg0) {calls = @fused_computation_0, kind = "row"}
// CHECK-NEXT:    return
func.func public @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%a, %z) {dimensions = array<i64: 1>, to_apply = @sum} : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = "hlo.broadcast_in_dim"(%0) {dimensions = array<i64: 0>} : (tensor<8xf32>) -> tensor<8x16xf32>
  %2 = "hlo.divide"(%a, %1) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Reductions of major dimensions are column kernels.
// CHECK-LABEL: func.func public @main
// CHECK:         "hlov.fusion"(%arg0) {calls = @fused_computation_0, kind = "column"}
func.func public @main(%a: tensor<8x16xf32>) -> tensor<16xf32> {
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlov.reduce"(%a, %z) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Bias and activation join the product they follow.
// CHECK-LABEL: func.func public @main
// CHECK:         "hlov.fusion"(%arg0, %arg1, %arg2) {calls = @fused_computation_0, kind = "dot"}
// CHECK-NEXT:    return
func.func public @main(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>, %c: tensor<4xf32>) -> tensor<8x4xf32> {
  %0 = "hlo.dot_general"(%a, %b) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %1 = "hlo.broadcast_in_dim"(%c) {dimensions = array<i64: 1>} : (tensor<4xf32>) -> tensor<8x4xf32>
  %2 = "hlo.add"(%0, %1) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %3 = "hlo.tanh"(%2) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}

// -----

// A value with users outside the cluster becomes a further result of the same kernel.
// CHECK-LABEL: func.func public @main
// CHECK:         %[[F:.*]]:2 = "hlov.fusion"(%arg0)
// CHECK-NEXT:    return %[[F]]#0, %[[F]]#1
func.func public @main(%a: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "hlo.exponential"(%a) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "hlo.negate"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// -----

// A path through another kernel keeps the first value out of the last kernel: no cycle.
// CHECK-LABEL: func.func public @main
// CHECK:         %[[E:.*]] = "hlov.fusion"(%arg0) {calls = @[[FE:.*]], kind = "loop"}
// CHECK-NEXT:    %[[D:.*]] = "hlov.fusion"(%[[E]], %arg1) {calls = @[[FD:.*]], kind = "dot"}
// CHECK-NEXT:    return %[[D]]
// CHECK:       func.func private @[[FD]]
// CHECK-NOT:     "hlo.exponential"
// CHECK:         "hlo.dot_general"
// CHECK-NEXT:    "hlo.add"
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "hlo.exponential"(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "hlo.dot_general"(%0, %b) {lhs_batching_dimensions = array<i64>, rhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_contracting_dimensions = array<i64: 0>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "hlo.add"(%1, %0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// A loop over scalars is one computation kernel.
// CHECK-LABEL: func.func public @main
// CHECK:         "hlov.fusion"(%arg0) {calls = @fused_computation_0, kind = "computation"}
// CHECK:       func.func private @fused_computation_0
// CHECK:         "hlov.while"
func.func public @main(%a: tensor<i32>) -> tensor<i32> {
  %0 = "hlov.while"(%a) {cond = @cond, body = @body} : (tensor<i32>) -> tensor<i32>
  return %0 : tensor<i32>
}
func.func private @cond(%a: tensor<i32>) -> tensor<i1> {
  %n = "hlo.constant"() {value = dense<10> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.compare"(%a, %n) {direction = "LT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @body(%a: tensor<i32>) -> tensor<i32> {
  %n = "hlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.add"(%a, %n) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  return %0 : tensor<i32>
}
