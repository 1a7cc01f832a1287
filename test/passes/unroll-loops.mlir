// RUN: %gristmill-opt %s --split-input-file --pass-pipeline=unroll-loops,verify-hlo | filecheck %s

// Three iterations, counted down by two: three copies of the body, and nothing of the loop.
// CHECK-LABEL: func.func @main
// CHECK-NOT: hlov.while
// CHECK: hlo.multiply
// CHECK: hlo.multiply
// CHECK: hlo.multiply
// CHECK-NOT: hlo.multiply
// CHECK: return
// CHECK-NOT: func.func
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %n = "hlo.constant"() {value = dense<6> : tensor<i32>} : () -> tensor<i32>
  %0:2 = "hlov.while"(%n, %x) {cond = @cond, body = @body} : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>)
  return %0#1 : tensor<8xf32>
}
func.func private @cond(%i: tensor<i32>, %x: tensor<8xf32>) -> tensor<i1> {
  %z = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.compare"(%i, %z) {direction = "GT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @body(%i: tensor<i32>, %x: tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>) {
  %two = "hlo.constant"() {value = dense<2> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.subtract"(%i, %two) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  %1 = "hlo.multiply"(%x, %x) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %0, %1 : tensor<i32>, tensor<8xf32>
}

// -----

// A loop that runs longer, or whose start is not known, stays.
// CHECK-LABEL: func.func @main
// CHECK: hlov.while
// CHECK: hlov.while
func.func @main(%x: tensor<8xf32>, %start: tensor<i32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %n = "hlo.constant"() {value = dense<9> : tensor<i32>} : () -> tensor<i32>
  %0:2 = "hlov.while"(%n, %x) {cond = @cond, body = @body} : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>)
  %1:2 = "hlov.while"(%start, %x) {cond = @cond, body = @body} : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>)
  return %0#1, %1#1 : tensor<8xf32>, tensor<8xf32>
}
func.func private @cond(%i: tensor<i32>, %x: tensor<8xf32>) -> tensor<i1> {
  %z = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.compare"(%i, %z) {direction = "GT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @body(%i: tensor<i32>, %x: tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>) {
  %one = "hlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.subtract"(%i, %one) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  %1 = "hlo.multiply"(%x, %x) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %0, %1 : tensor<i32>, tensor<8xf32>
}
