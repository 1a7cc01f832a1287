// RUN: %gristmill-opt %s --split-input-file --pass-pipeline=rewrite-error-functions,verify-hlo | filecheck %s

// The normal distribution's function as jax.scipy.stats.norm.cdf has it, times 2: all its forms are erfc(-x).
// CHECK-LABEL: func.func @ndtr
// CHECK-SAME: (%[[X:.*]]: tensor<8xf32>)
// CHECK-NEXT: %[[N:.*]] = "hlo.negate"(%[[X]])
// CHECK-NEXT: %[[R:.*]] = "hlo.erfc"(%[[N]])
// CHECK-NEXT: return %[[R]]
func.func @ndtr(%x: tensor<8xf32>) -> tensor<8xf32> {
  %zero = "hlo.constant"() {value = dense<0.0> : tensor<8xf32>} : () -> tensor<8xf32>
  %c = "hlo.constant"() {value = dense<0.707106769> : tensor<8xf32>} : () -> tensor<8xf32>
  %one = "hlo.constant"() {value = dense<1.0> : tensor<8xf32>} : () -> tensor<8xf32>
  %two = "hlo.constant"() {value = dense<2.0> : tensor<8xf32>} : () -> tensor<8xf32>
  %0 = "hlo.abs"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "hlo.compare"(%0, %c) {direction = "LT", type = "FLOAT"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
  %2 = "hlo.erf"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "hlo.add"(%one, %2) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %4 = "hlo.compare"(%x, %zero) {direction = "GT", type = "FLOAT"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
  %5 = "hlo.erfc"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %6 = "hlo.subtract"(%two, %5) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %7 = "hlo.erfc"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %8 = "hlo.select"(%4, %6, %7) : (tensor<8xi1>, tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %9 = "hlo.select"(%1, %3, %8) : (tensor<8xi1>, tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %9 : tensor<8xf32>
}

// -----

// Either value may come first.
// CHECK-LABEL: func.func @swapped
// CHECK: %[[R:.*]] = "hlo.erfc"
// CHECK-NEXT: return %[[R]]
func.func @swapped(%x: tensor<f64>, %p: tensor<i1>) -> tensor<f64> {
  %one = "hlo.constant"() {value = dense<1.0> : tensor<f64>} : () -> tensor<f64>
  %0 = "hlo.erf"(%x) : (tensor<f64>) -> tensor<f64>
  %1 = "hlo.add"(%0, %one) : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %2 = "hlo.negate"(%x) : (tensor<f64>) -> tensor<f64>
  %3 = "hlo.erfc"(%2) : (tensor<f64>) -> tensor<f64>
  %4 = "hlo.select"(%p, %3, %1) : (tensor<i1>, tensor<f64>, tensor<f64>) -> tensor<f64>
  return %4 : tensor<f64>
}

// -----

// Values of different arguments, another constant, the other comparison: nothing of that is one function.
// CHECK-LABEL: func.func @kept
// CHECK-COUNT-4: "hlo.select"
func.func @kept(%x: tensor<f32>, %y: tensor<f32>, %p: tensor<i1>) -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) {
  %zero = "hlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %one = "hlo.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %two = "hlo.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "hlo.abs"(%x) : (tensor<f32>) -> tensor<f32>
  %1 = "hlo.erfc"(%0) : (tensor<f32>) -> tensor<f32>
  %2 = "hlo.subtract"(%two, %1) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %3 = "hlo.subtract"(%one, %1) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %4 = "hlo.compare"(%x, %zero) {direction = "GT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %5 = "hlo.compare"(%x, %zero) {direction = "LT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %6 = "hlo.compare"(%y, %zero) {direction = "GT", type = "FLOAT"} : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %7 = "hlo.select"(%4, %3, %1) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
  %8 = "hlo.select"(%5, %2, %1) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
  %9 = "hlo.select"(%6, %2, %1) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
  %10 = "hlo.erf"(%y) : (tensor<f32>) -> tensor<f32>
  %11 = "hlo.add"(%one, %10) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %12 = "hlo.negate"(%x) : (tensor<f32>) -> tensor<f32>
  %13 = "hlo.erfc"(%12) : (tensor<f32>) -> tensor<f32>
  %14 = "hlo.select"(%p, %11, %13) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
  return %7, %8, %9, %14 : tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>
}
