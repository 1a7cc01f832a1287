// SPDX-License-Identifier: Apache-2.0
// RUN: %gristmill-opt %s | filecheck %s
// What is rewritten before translation: CHLO, composites, deprecated and dynamic operations, tuples.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %[[X:arg0]]: tensor<4x6xf32>
func.func @main(%x: tensor<4x6xf32>, %start: tensor<1xi64>, %v: tensor<8xf32>) -> (tensor<4x6xf32>, tensor<f32>, tensor<3xf32>) {
  // CHECK: %[[ERF:.*]] = "hlo.erf"(%[[X]])
  %0 = chlo.erf %x : tensor<4x6xf32> -> tensor<4x6xf32>
  // CHECK: %[[ERFC:.*]] = "hlo.erfc"(%[[ERF]])
  %1 = chlo.erfc %0 : tensor<4x6xf32> -> tensor<4x6xf32>
  // CHECK: %[[SQUARE:.*]] = "hlo.multiply"(%[[ERFC]], %[[ERFC]])
  %2 = chlo.square %1 : tensor<4x6xf32> -> tensor<4x6xf32>
  // CHECK: %[[CALLED:.*]] = "hlo.add"(%{{.*}}, %{{.*}}) : (tensor<4x6xf32>, tensor<4x6xf32>)
  %3 = stablehlo.composite "acme.twice" %2 {decomposition = @decomposition} : (tensor<4x6xf32>) -> tensor<4x6xf32>

  // CHECK: "hlo.dot_general"({{.*}}) {lhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 0>
  %4 = stablehlo.dot %v, %v : (tensor<8xf32>, tensor<8xf32>) -> tensor<f32>

  // A dynamic slice of static size; the limit only repeats the size.
  // CHECK: %[[PART:.*]] = "hlo.slice"(%[[START:.*]]) {limit_indices = array<i64: 1>, start_indices = array<i64: 0>, strides = array<i64: 1>}
  // CHECK: %[[INDEX:.*]] = "hlo.reshape"(%[[PART]]) : (tensor<1xi64>) -> tensor<i64>
  // CHECK: "hlo.dynamic_slice"(%{{.*}}, %[[INDEX]]) {slice_sizes = array<i64: 3>}
  %size = stablehlo.constant dense<3> : tensor<1xi64>
  %one = stablehlo.constant dense<1> : tensor<1xi64>
  %limit = stablehlo.add %start, %size : tensor<1xi64>
  %5 = stablehlo.real_dynamic_slice %v, %start, %limit, %one : (tensor<8xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<3xf32>

  // CHECK-NOT: tuple
  %6 = stablehlo.tuple %3, %5 : tuple<tensor<4x6xf32>, tensor<3xf32>>
  %7 = stablehlo.get_tuple_element %6[0] : (tuple<tensor<4x6xf32>, tensor<3xf32>>) -> tensor<4x6xf32>
  // CHECK: return %[[CALLED]]
  return %7, %4, %5 : tensor<4x6xf32>, tensor<f32>, tensor<3xf32>
}

// A module with dynamic operations is flattened before its shapes are worked out: no call is left.
// CHECK-NOT: func.func private
func.func private @decomposition(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %0 = stablehlo.add %x, %x : tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}

// CHECK-NOT: @unreachable
func.func private @unreachable() {
  return
}
