// RUN: %gristmill-opt %s --pass-pipeline=cse-hlo | filecheck %s

// CHECK-LABEL: func.func @equal_ops
// CHECK-SAME: (%[[X:.*]]: tensor<2xf32>, %[[Y:.*]]: tensor<2xf32>)
// CHECK-NEXT: %[[A:.*]] = "hlo.add"(%[[X]], %[[Y]])
// CHECK-NEXT: %[[M:.*]] = "hlo.multiply"(%[[A]], %[[A]])
// CHECK-NEXT: return %[[M]]
func.func @equal_ops(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "hlo.add"(%x, %y) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %1 = "hlo.add"(%y, %x) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %2 = "hlo.multiply"(%0, %1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2 : tensor<2xf32>
}

// CHECK-LABEL: func.func @differences_that_matter
// CHECK-COUNT-2: "hlo.subtract"
// CHECK-COUNT-2: "hlo.iota"
// CHECK-COUNT-2: "hlo.rng"
// CHECK: return
func.func @differences_that_matter(%x: tensor<f32>, %y: tensor<f32>, %s: tensor<1xi64>) -> (tensor<f32>, tensor<f32>, tensor<2x2xi32>, tensor<2x2xi32>, tensor<2xf32>, tensor<2xf32>) {
  %0 = "hlo.subtract"(%x, %y) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = "hlo.subtract"(%y, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = "hlo.iota"() {dimension = 0 : i64} : () -> tensor<2x2xi32>
  %3 = "hlo.iota"() {dimension = 1 : i64} : () -> tensor<2x2xi32>
  %4 = "hlo.rng"(%x, %y, %s) {rng_distribution = "UNIFORM"} : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<2xf32>
  %5 = "hlo.rng"(%x, %y, %s) {rng_distribution = "UNIFORM"} : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<2xf32>
  return %0, %1, %2, %3, %4, %5 : tensor<f32>, tensor<f32>, tensor<2x2xi32>, tensor<2x2xi32>, tensor<2xf32>, tensor<2xf32>
}

// CHECK-LABEL: func.func @equal_computations
// CHECK-COUNT-1: "hlov.reduce"
// CHECK-NOT: "hlov.reduce"
// CHECK: func.func private @sum_1
// CHECK-NOT: func.func private @sum_2
func.func @equal_computations(%x: tensor<4xf32>, %z: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %0 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0>, to_apply = @sum_1} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %1 = "hlov.reduce"(%x, %z) {dimensions = array<i64: 0>, to_apply = @sum_2} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}
func.func private @sum_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @sum_2(%c: tensor<f32>, %d: tensor<f32>) -> tensor<f32> {
  %0 = "hlo.add"(%c, %d) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
