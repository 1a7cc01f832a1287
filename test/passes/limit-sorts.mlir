// RUN: %gristmill-opt --pass-pipeline=limit-sorts %s | filecheck %s

// The slices take three elements of a row at most.
// CHECK-LABEL: func.func @main
// CHECK: hlov.sort{{.*}} gristmill.leading = 3
func.func @main(%a: tensor<4x9xf32>, %i: tensor<4x9xi32>) -> (tensor<4x2xf32>, tensor<2x2xi32>) {
  %0:2 = "hlov.sort"(%a, %i) {comparator = @less, dimension = 1 : i64, is_stable = true} : (tensor<4x9xf32>, tensor<4x9xi32>) -> (tensor<4x9xf32>, tensor<4x9xi32>)
  %1 = "hlo.slice"(%0#0) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 4, 2>, strides = array<i64: 1, 1>} : (tensor<4x9xf32>) -> tensor<4x2xf32>
  %2 = "hlo.slice"(%0#1) {start_indices = array<i64: 2, 1>, limit_indices = array<i64: 4, 3>, strides = array<i64: 1, 1>} : (tensor<4x9xi32>) -> tensor<2x2xi32>
  return %1, %2 : tensor<4x2xf32>, tensor<2x2xi32>
}

// One result is read whole, or sliced along the other dimension only.
// CHECK-LABEL: func.func @whole
// CHECK-NOT: gristmill.leading
func.func @whole(%a: tensor<4x9xf32>, %i: tensor<4x9xi32>) -> (tensor<4x2xf32>, tensor<4x9xi32>, tensor<2x9xf32>) {
  %0:2 = "hlov.sort"(%a, %i) {comparator = @less, dimension = 1 : i64, is_stable = true} : (tensor<4x9xf32>, tensor<4x9xi32>) -> (tensor<4x9xf32>, tensor<4x9xi32>)
  %1 = "hlo.slice"(%0#0) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 4, 2>, strides = array<i64: 1, 1>} : (tensor<4x9xf32>) -> tensor<4x2xf32>
  %2:2 = "hlov.sort"(%a, %i) {comparator = @less, dimension = 1 : i64, is_stable = true} : (tensor<4x9xf32>, tensor<4x9xi32>) -> (tensor<4x9xf32>, tensor<4x9xi32>)
  %3 = "hlo.slice"(%2#0) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 2, 9>, strides = array<i64: 1, 1>} : (tensor<4x9xf32>) -> tensor<2x9xf32>
  return %1, %0#1, %3 : tensor<4x2xf32>, tensor<4x9xi32>, tensor<2x9xf32>
}

func.func private @less(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<i1> {
  %0 = "hlo.compare"(%a, %b) {direction = "LT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}
