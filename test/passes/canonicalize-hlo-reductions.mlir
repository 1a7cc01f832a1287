// RUN: %gristmill-opt %s --split-input-file --pass-pipeline=canonicalize-hlo,dce-hlo,verify-hlo | filecheck %s

// The position of the first condition that holds: a condition after the other, with its number.
// CHECK-LABEL: func.func @first_true
// CHECK-SAME: (%[[A:.*]]: tensor<4xi1>, %[[B:.*]]: tensor<4xi1>)
// CHECK-NOT: hlov.concatenate
// CHECK-NOT: hlov.reduce
// CHECK: %[[C:.*]] = "hlo.constant"() {value = dense<1> : tensor<i64>}
// CHECK: %[[ONE:.*]] = "hlo.broadcast_in_dim"(%[[C]])
// CHECK: %[[P:.*]] = "hlo.compare"(%{{.*}}, %[[B]]) {direction = "GT"
// CHECK: %[[R:.*]] = "hlo.select"(%[[P]], %{{.*}}, %[[ONE]])
// CHECK: return %[[R]]
func.func @first_true(%a: tensor<4xi1>, %b: tensor<4xi1>) -> tensor<4xi64> {
  %0 = "hlo.reshape"(%a) : (tensor<4xi1>) -> tensor<1x4xi1>
  %1 = "hlo.reshape"(%b) : (tensor<4xi1>) -> tensor<1x4xi1>
  %2 = "hlov.concatenate"(%0, %1) {dimension = 0 : i64} : (tensor<1x4xi1>, tensor<1x4xi1>) -> tensor<2x4xi1>
  %3 = "hlo.iota"() {dimension = 0 : i64} : () -> tensor<2x4xi64>
  %f = "hlo.constant"() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  %z = "hlo.constant"() {value = dense<0> : tensor<i64>} : () -> tensor<i64>
  %4:2 = "hlov.reduce"(%2, %3, %f, %z) {dimensions = array<i64: 0>, to_apply = @first} : (tensor<2x4xi1>, tensor<2x4xi64>, tensor<i1>, tensor<i64>) -> (tensor<4xi1>, tensor<4xi64>)
  return %4#1 : tensor<4xi64>
}
func.func private @first(%a: tensor<i1>, %i: tensor<i64>, %b: tensor<i1>, %j: tensor<i64>) -> (tensor<i1>, tensor<i64>) {
  %0 = "hlo.compare"(%a, %b) {direction = "GT", type = "UNSIGNED"} : (tensor<i1>, tensor<i1>) -> tensor<i1>
  %1 = "hlo.select"(%0, %a, %b) : (tensor<i1>, tensor<i1>, tensor<i1>) -> tensor<i1>
  %2 = "hlo.select"(%0, %i, %j) : (tensor<i1>, tensor<i64>, tensor<i64>) -> tensor<i64>
  return %1, %2 : tensor<i1>, tensor<i64>
}

// -----

// A constant of the body becomes one of the array's shape.
// CHECK-LABEL: func.func @scaled
// CHECK-NOT: hlov.reduce
// CHECK: %[[C:.*]] = "hlo.constant"() {value = dense<3.000000e+00>
// CHECK: %[[W:.*]] = "hlo.broadcast_in_dim"(%[[C]]) {{.*}} -> tensor<4xf32>
// CHECK: "hlo.multiply"(%{{.*}}, %[[W]])
// CHECK: "hlo.add"
// CHECK: "hlo.multiply"
// CHECK: %[[R:.*]] = "hlo.add"
// CHECK: return %[[R]]
func.func @scaled(%a: tensor<4x1xf32>, %b: tensor<4x1xf32>, %z: tensor<f32>) -> tensor<4xf32> {
  %0 = "hlov.concatenate"(%a, %b) {dimension = 1 : i64} : (tensor<4x1xf32>, tensor<4x1xf32>) -> tensor<4x2xf32>
  %1 = "hlov.reduce"(%0, %z) {dimensions = array<i64: 1>, to_apply = @horner} : (tensor<4x2xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @horner(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %c = "hlo.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.multiply"(%a, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = "hlo.add"(%0, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// Arrays longer than 1, another dimension, sums in a wider type: these stay.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-3: "hlov.reduce"
func.func @kept(%a: tensor<2x4xf32>, %b: tensor<1x4xf32>, %c: tensor<1x4xbf16>, %z: tensor<f32>) -> (tensor<4xf32>, tensor<2xf32>, tensor<4xf32>) {
  %0 = "hlov.concatenate"(%a, %b) {dimension = 0 : i64} : (tensor<2x4xf32>, tensor<1x4xf32>) -> tensor<3x4xf32>
  %1 = "hlov.reduce"(%0, %z) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<3x4xf32>, tensor<f32>) -> tensor<4xf32>
  %2 = "hlov.concatenate"(%b, %b) {dimension = 0 : i64} : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
  %3 = "hlov.reduce"(%2, %z) {dimensions = array<i64: 1>, to_apply = @sum} : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
  %4 = "hlov.concatenate"(%c, %c) {dimension = 0 : i64} : (tensor<1x4xbf16>, tensor<1x4xbf16>) -> tensor<2x4xbf16>
  %5 = "hlov.reduce"(%4, %z) {dimensions = array<i64: 0>, to_apply = @sum} : (tensor<2x4xbf16>, tensor<f32>) -> tensor<4xf32>
  return %1, %3, %5 : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
}
func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// The gradient of a sum over windows of two that leave one element over: each element twice, and a zero.
// CHECK-LABEL: func.func @windows_of_one_element
// CHECK-SAME: (%[[X:.*]]: tensor<3x4x5xf32>)
// CHECK: %[[B:.*]] = "hlo.broadcast_in_dim"(%[[X]]) {dimensions = array<i64: 0, 1, 3>} : (tensor<3x4x5xf32>) -> tensor<3x4x2x5xf32>
// CHECK: %[[R:.*]] = "hlo.reshape"(%[[B]]) : (tensor<3x4x2x5xf32>) -> tensor<3x8x5xf32>
// CHECK: %[[P:.*]] = "hlo.pad"(%[[R]], {{.*}}) {high = array<i64: 0, 1, 0>, interior = array<i64: 0, 0, 0>, low = array<i64: 0, 0, 0>}
// CHECK: return %[[P]]
func.func @windows_of_one_element(%x: tensor<3x4x5xf32>) -> tensor<3x9x5xf32> {
  %zero = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.pad"(%x, %zero) {low = array<i64: 0, 1, 0>, high = array<i64: 0, 2, 0>, interior = array<i64: 0, 1, 0>} : (tensor<3x4x5xf32>, tensor<f32>) -> tensor<3x10x5xf32>
  %1 = "hlov.reduce_window"(%0, %zero) {base_dilations = array<i64: 1, 1, 1>, padding_high = array<i64: 0, 0, 0>, padding_low = array<i64: 0, 0, 0>, to_apply = @sum_of_two, window_dilations = array<i64: 1, 1, 1>, window_dimensions = array<i64: 1, 2, 1>, window_strides = array<i64: 1, 1, 1>} : (tensor<3x10x5xf32>, tensor<f32>) -> tensor<3x9x5xf32>
  return %1 : tensor<3x9x5xf32>
}
func.func private @sum_of_two(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
