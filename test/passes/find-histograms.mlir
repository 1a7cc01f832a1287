// RUN: %gristmill-opt %s --pass-pipeline="fuse,find-histograms" | filecheck %s

// Ids on either side of the comparison; the computations stay as they are.
// CHECK-LABEL: func.func public @main
// CHECK-NEXT:    "hlov.fusion"(%arg0) {calls = @[[A:.*]], kind = "histogram"}
// CHECK-NEXT:    "hlov.fusion"(%arg0) {calls = @[[B:.*]], kind = "histogram"}
// CHECK-NEXT:    "hlov.fusion"(%arg0) {calls = @{{.*}}, kind = "column"}
// CHECK-NEXT:    "hlov.fusion"(%arg1) {calls = @{{.*}}, kind = "column"}
// CHECK:       func.func private @[[A]]
// CHECK:         "hlo.compare"
// CHECK:         "hlov.reduce"
func.func public @main(%a: tensor<500xi32>, %f: tensor<500xf32>) -> (tensor<64xi32>, tensor<64xf32>, tensor<8xi32>, tensor<64xi32>) {
  %i = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %z = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>

  %0 = "hlo.broadcast_in_dim"(%a) {dimensions = array<i64: 0>} : (tensor<500xi32>) -> tensor<500x64xi32>
  %1 = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<500x64xi32>
  %2 = "hlo.compare"(%0, %1) {direction = "EQ", type = "SIGNED"} : (tensor<500x64xi32>, tensor<500x64xi32>) -> tensor<500x64xi1>
  %3 = "hlo.convert"(%2) : (tensor<500x64xi1>) -> tensor<500x64xi32>
  %4 = "hlov.reduce"(%3, %i) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<500x64xi32>, tensor<i32>) -> tensor<64xi32>

  %c = "hlo.iota"() {dimension = 0 : i64} : () -> tensor<64xi32>
  %5 = "hlo.broadcast_in_dim"(%a) {dimensions = array<i64: 0>} : (tensor<500xi32>) -> tensor<500x64xi32>
  %6 = "hlo.broadcast_in_dim"(%c) {dimensions = array<i64: 1>} : (tensor<64xi32>) -> tensor<500x64xi32>
  %7 = "hlo.compare"(%6, %5) {direction = "EQ", type = "SIGNED"} : (tensor<500x64xi32>, tensor<500x64xi32>) -> tensor<500x64xi1>
  %8 = "hlo.convert"(%7) : (tensor<500x64xi1>) -> tensor<500x64xf32>
  %9 = "hlov.reduce"(%8, %z) {dimensions = array<i64: 0>, to_apply = @fsum} : (tensor<500x64xf32>, tensor<f32>) -> tensor<64xf32>

  // A few classes are compared.
  %10 = "hlo.broadcast_in_dim"(%a) {dimensions = array<i64: 0>} : (tensor<500xi32>) -> tensor<500x8xi32>
  %11 = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<500x8xi32>
  %12 = "hlo.compare"(%10, %11) {direction = "EQ", type = "SIGNED"} : (tensor<500x8xi32>, tensor<500x8xi32>) -> tensor<500x8xi1>
  %13 = "hlo.convert"(%12) : (tensor<500x8xi1>) -> tensor<500x8xi32>
  %14 = "hlov.reduce"(%13, %i) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<500x8xi32>, tensor<i32>) -> tensor<8xi32>

  // So are ids that are no integers.
  %15 = "hlo.broadcast_in_dim"(%f) {dimensions = array<i64: 0>} : (tensor<500xf32>) -> tensor<500x64xf32>
  %16 = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<500x64xf32>
  %17 = "hlo.compare"(%15, %16) {direction = "EQ", type = "FLOAT"} : (tensor<500x64xf32>, tensor<500x64xf32>) -> tensor<500x64xi1>
  %18 = "hlo.convert"(%17) : (tensor<500x64xi1>) -> tensor<500x64xi32>
  %19 = "hlov.reduce"(%18, %i) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<500x64xi32>, tensor<i32>) -> tensor<64xi32>
  return %4, %9, %14, %19 : tensor<64xi32>, tensor<64xf32>, tensor<8xi32>, tensor<64xi32>
}
func.func private @sum(%a: tensor<i32>, %b: tensor<i32>) -> tensor<i32> {
  %0 = "hlo.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  return %0 : tensor<i32>
}
func.func private @fsum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
