// RUN: %gristmill-opt %s --split-input-file --pass-pipeline=rewrite-sigmoids,verify-hlo | filecheck %s

// The tanh form of GELU: x/2 (1 + tanh(c x)) is x logistic(2 c x).
// CHECK-LABEL: func.func @gelu
// CHECK-SAME: (%[[X:.*]]: tensor<8xf32>)
// CHECK: %[[C:.*]] = "hlo.constant"() {value = dense<1.500000e+00> : tensor<f32>}
// CHECK: %[[B:.*]] = "hlo.broadcast_in_dim"(%[[C]])
// CHECK: %[[U:.*]] = "hlo.multiply"(%[[B]], %[[X]])
// CHECK: %[[L:.*]] = "hlo.logistic"(%[[U]])
// CHECK: %[[R:.*]] = "hlo.multiply"(%[[X]], %[[L]])
// CHECK: return %[[R]]
func.func @gelu(%x: tensor<8xf32>) -> tensor<8xf32> {
  %one = "hlo.constant"() {value = dense<1.0> : tensor<8xf32>} : () -> tensor<8xf32>
  %half = "hlo.constant"() {value = dense<0.5> : tensor<8xf32>} : () -> tensor<8xf32>
  %c = "hlo.constant"() {value = dense<0.75> : tensor<8xf32>} : () -> tensor<8xf32>
  %0 = "hlo.multiply"(%c, %x) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %1 = "hlo.tanh"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "hlo.add"(%one, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = "hlo.multiply"(%half, %2) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %4 = "hlo.multiply"(%x, %3) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}

// -----

// Without a factor the sum is twice the logistic function.
// CHECK-LABEL: func.func @sum
// CHECK: "hlo.multiply"
// CHECK: %[[L:.*]] = "hlo.logistic"
// CHECK: %[[R:.*]] = "hlo.multiply"(%{{.*}}, %[[L]])
// CHECK: return %[[R]]
func.func @sum(%x: tensor<f64>) -> tensor<f64> {
  %one = "hlo.constant"() {value = dense<1.0> : tensor<f64>} : () -> tensor<f64>
  %0 = "hlo.tanh"(%x) : (tensor<f64>) -> tensor<f64>
  %1 = "hlo.add"(%0, %one) : (tensor<f64>, tensor<f64>) -> tensor<f64>
  return %1 : tensor<f64>
}

// -----

// A tanh that something else reads stays, and so does one that is rounded to bf16.
// CHECK-LABEL: func.func @kept
// CHECK-NOT: hlo.logistic
func.func @kept(%x: tensor<f32>, %y: tensor<bf16>) -> (tensor<f32>, tensor<f32>, tensor<bf16>) {
  %one = "hlo.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %narrow = "hlo.constant"() {value = dense<1.0> : tensor<bf16>} : () -> tensor<bf16>
  %0 = "hlo.tanh"(%x) : (tensor<f32>) -> tensor<f32>
  %1 = "hlo.add"(%0, %one) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = "hlo.tanh"(%y) : (tensor<bf16>) -> tensor<bf16>
  %3 = "hlo.add"(%2, %narrow) : (tensor<bf16>, tensor<bf16>) -> tensor<bf16>
  return %0, %1, %3 : tensor<f32>, tensor<f32>, tensor<bf16>
}
