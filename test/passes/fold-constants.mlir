// RUN: %gristmill-opt %s --pass-pipeline=fold-constants | filecheck %s
// RUN: %gristmill-opt %s --pass-pipeline='fold-constants{limit-bytes=8}' | filecheck %s --check-prefix=LIMIT

// CHECK-LABEL: func.func @integers_wrap
// CHECK-NEXT: value = dense<[-128, 0, 5]> : tensor<3xi8>
// CHECK-NEXT: return
// LIMIT-LABEL: func.func @integers_wrap
// LIMIT: dense<[-128, 0, 5]>
func.func @integers_wrap() -> tensor<3xi8> {
  %0 = "hlo.constant"() {value = dense<[127, -1, 2]> : tensor<3xi8>} : () -> tensor<3xi8>
  %1 = "hlo.constant"() {value = dense<[1, 1, 3]> : tensor<3xi8>} : () -> tensor<3xi8>
  %2 = "hlo.add"(%0, %1) : (tensor<3xi8>, tensor<3xi8>) -> tensor<3xi8>
  return %2 : tensor<3xi8>
}

// CHECK-LABEL: func.func @division_truncates
// CHECK-NEXT: dense<[-3, -2, 3]> : tensor<3xi32>
// CHECK-NEXT: return
// LIMIT-LABEL: func.func @division_truncates
// LIMIT: "hlo.divide"
func.func @division_truncates() -> tensor<3xi32> {
  %0 = "hlo.constant"() {value = dense<[-7, 8, -9]> : tensor<3xi32>} : () -> tensor<3xi32>
  %1 = "hlo.constant"() {value = dense<[2, -4, -3]> : tensor<3xi32>} : () -> tensor<3xi32>
  %2 = "hlo.divide"(%0, %1) : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi32>
  return %2 : tensor<3xi32>
}

// CHECK-LABEL: func.func @division_by_zero_is_left
// CHECK: "hlo.divide"
func.func @division_by_zero_is_left() -> tensor<2xi32> {
  %0 = "hlo.constant"() {value = dense<[1, 2]> : tensor<2xi32>} : () -> tensor<2xi32>
  %1 = "hlo.constant"() {value = dense<[1, 0]> : tensor<2xi32>} : () -> tensor<2xi32>
  %2 = "hlo.divide"(%0, %1) : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  return %2 : tensor<2xi32>
}

// 1/3 rounds to bf16 once.
// CHECK-LABEL: func.func @bf16_rounds
// CHECK-NEXT: dense<3.339840e-01> : tensor<bf16>
func.func @bf16_rounds() -> tensor<bf16> {
  %0 = "hlo.constant"() {value = dense<1.0> : tensor<bf16>} : () -> tensor<bf16>
  %1 = "hlo.constant"() {value = dense<3.0> : tensor<bf16>} : () -> tensor<bf16>
  %2 = "hlo.divide"(%0, %1) : (tensor<bf16>, tensor<bf16>) -> tensor<bf16>
  return %2 : tensor<bf16>
}

// CHECK-LABEL: func.func @shifts_past_the_width
// CHECK-NEXT: dense<[4, 0, 0]> : tensor<3xi32>
func.func @shifts_past_the_width() -> tensor<3xi32> {
  %0 = "hlo.constant"() {value = dense<1> : tensor<3xi32>} : () -> tensor<3xi32>
  %1 = "hlo.constant"() {value = dense<[2, 32, -1]> : tensor<3xi32>} : () -> tensor<3xi32>
  %2 = "hlo.shift_left"(%0, %1) : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi32>
  return %2 : tensor<3xi32>
}

// CHECK-LABEL: func.func @splats_stay_broadcast
// CHECK-NEXT: %[[C:.*]] = "hlo.constant"() {value = dense<6.000000e+00> : tensor<f32>}
// CHECK-NEXT: %[[B:.*]] = "hlo.broadcast_in_dim"(%[[C]]) {dimensions = array<i64>} : (tensor<f32>) -> tensor<1024x1024xf32>
// CHECK-NEXT: return %[[B]]
func.func @splats_stay_broadcast() -> tensor<1024x1024xf32> {
  %0 = "hlo.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "hlo.broadcast_in_dim"(%0) {dimensions = array<i64>} : (tensor<f32>) -> tensor<1024x1024xf32>
  %2 = "hlo.constant"() {value = dense<3.0> : tensor<1024x1024xf32>} : () -> tensor<1024x1024xf32>
  %3 = "hlo.multiply"(%1, %2) : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  return %3 : tensor<1024x1024xf32>
}

// CHECK-LABEL: func.func @repeated_rows_stay_broadcast
// CHECK-NEXT: "hlo.constant"() {value = dense<[3, 5]> : tensor<2xi32>}
// CHECK-NEXT: "hlo.broadcast_in_dim"
func.func @repeated_rows_stay_broadcast() -> tensor<4x2xi32> {
  %0 = "hlo.constant"() {value = dense<[1, 2]> : tensor<2xi32>} : () -> tensor<2xi32>
  %1 = "hlo.constant"() {value = dense<[2, 3]> : tensor<2xi32>} : () -> tensor<2xi32>
  %2 = "hlo.add"(%0, %1) : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  %3 = "hlo.broadcast_in_dim"(%2) {dimensions = array<i64: 1>} : (tensor<2xi32>) -> tensor<4x2xi32>
  return %3 : tensor<4x2xi32>
}

// CHECK-LABEL: func.func @mask
// CHECK{LITERAL}: dense<[[true, false], [true, true]]> : tensor<2x2xi1>
func.func @mask() -> tensor<2x2xi1> {
  %0 = "hlo.iota"() {dimension = 0 : i64} : () -> tensor<2x2xi32>
  %1 = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<2x2xi32>
  %2 = "hlo.compare"(%0, %1) {direction = "GE", type = "SIGNED"} : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi1>
  return %2 : tensor<2x2xi1>
}

// CHECK-LABEL: func.func @data_movement
// CHECK: dense<[3, 1]> : tensor<2xi32>
// CHECK{LITERAL}: dense<[[9, 1, 9, 2], [9, 3, 9, 4]]> : tensor<2x4xi32>
func.func @data_movement() -> (tensor<2xi32>, tensor<2x4xi32>) {
  %0 = "hlo.constant"() {value = dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>} : () -> tensor<2x2xi32>
  %1 = "hlo.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<2x2xi32>) -> tensor<2x2xi32>
  %2 = "hlo.slice"(%1) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 1, 2>, strides = array<i64: 1, 1>} : (tensor<2x2xi32>) -> tensor<1x2xi32>
  %3 = "hlo.reshape"(%2) : (tensor<1x2xi32>) -> tensor<2xi32>
  %4 = "hlo.reverse"(%3) {dimensions = array<i64: 0>} : (tensor<2xi32>) -> tensor<2xi32>
  %9 = "hlo.constant"() {value = dense<9> : tensor<i32>} : () -> tensor<i32>
  %5 = "hlo.pad"(%0, %9) {low = array<i64: 0, 1>, high = array<i64: 0, 0>, interior = array<i64: 0, 1>} : (tensor<2x2xi32>, tensor<i32>) -> tensor<2x4xi32>
  return %4, %5 : tensor<2xi32>, tensor<2x4xi32>
}

// Comparing NaN, converting out of range, and choosing between zeros.
// CHECK-LABEL: func.func @float_corners
// CHECK: dense<[true, false]> : tensor<2xi1>
// CHECK: "hlo.convert"
// CHECK: "hlo.maximum"
// CHECK: return
func.func @float_corners() -> (tensor<2xi1>, tensor<2xi32>, tensor<f32>) {
  %0 = "hlo.constant"() {value = dense<[0x7FC00000, 3.0e9]> : tensor<2xf32>} : () -> tensor<2xf32>
  %1 = "hlo.compare"(%0, %0) {direction = "NE", type = "FLOAT"} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
  %2 = "hlo.convert"(%0) : (tensor<2xf32>) -> tensor<2xi32>
  %3 = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %4 = "hlo.constant"() {value = dense<-0.0> : tensor<f32>} : () -> tensor<f32>
  %5 = "hlo.maximum"(%3, %4) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %1, %2, %5 : tensor<2xi1>, tensor<2xi32>, tensor<f32>
}

// CHECK-LABEL: func.func @big_constants_are_shared
// CHECK: dense_resource<w_reshaped> : tensor<1x2xf32>
func.func @big_constants_are_shared() -> tensor<1x2xf32> {
  %0 = "hlo.constant"() {value = dense_resource<w> : tensor<2xf32>} : () -> tensor<2xf32>
  %1 = "hlo.reshape"(%0) : (tensor<2xf32>) -> tensor<1x2xf32>
  return %1 : tensor<1x2xf32>
}

{-#
  dialect_resources: {
    builtin: {
      w: "0x400000000000803F00000040"
    }
  }
#-}
