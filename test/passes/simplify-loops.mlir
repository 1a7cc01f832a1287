// RUN: %gristmill-opt %s --split-input-file --pass-pipeline=simplify-loops,verify-hlo | filecheck %s

// The bound is a constant, the step is not, both stay as they are; the unused carried value goes.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<f32>, %[[STEP:.*]]: tensor<i32>)
// CHECK: %[[ZERO:.*]] = "hlo.constant"() {value = dense<0> : tensor<i32>}
// CHECK: %[[W:.*]]:3 = "hlov.while"(%[[ZERO]], %[[X]], %[[STEP]]) {body = @body_1, cond = @cond_1}
// CHECK: return %[[W]]#1, %[[STEP]]
func.func @main(%x: tensor<f32>, %step: tensor<i32>) -> (tensor<f32>, tensor<i32>) {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %bound = "hlo.constant"() {value = dense<10> : tensor<i32>} : () -> tensor<i32>
  %0:5 = "hlov.while"(%zero, %x, %step, %bound, %x) {cond = @cond, body = @body} : (tensor<i32>, tensor<f32>, tensor<i32>, tensor<i32>, tensor<f32>) -> (tensor<i32>, tensor<f32>, tensor<i32>, tensor<i32>, tensor<f32>)
  return %0#1, %0#2 : tensor<f32>, tensor<i32>
}
// CHECK: func.func private @cond_1(%[[I:.*]]: tensor<i32>, %{{.*}}: tensor<f32>, %{{.*}}: tensor<i32>) -> tensor<i1>
// CHECK-NEXT: %[[B:.*]] = "hlo.constant"() {value = dense<10> : tensor<i32>}
// CHECK-NEXT: "hlo.compare"(%[[I]], %[[B]])
func.func private @cond(%i: tensor<i32>, %x: tensor<f32>, %step: tensor<i32>, %bound: tensor<i32>, %unused: tensor<f32>) -> tensor<i1> {
  %0 = "hlo.compare"(%i, %bound) {direction = "LT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
// CHECK: func.func private @body_1
// CHECK-NOT: hlo.sine
// CHECK: "hlo.add"
// CHECK-NEXT: "hlo.multiply"
// CHECK-NEXT: return
// CHECK-NOT: func.func
func.func private @body(%i: tensor<i32>, %x: tensor<f32>, %step: tensor<i32>, %bound: tensor<i32>, %unused: tensor<f32>) -> (tensor<i32>, tensor<f32>, tensor<i32>, tensor<i32>, tensor<f32>) {
  %0 = "hlo.add"(%i, %step) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  %1 = "hlo.multiply"(%x, %x) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %2 = "hlo.sine"(%unused) : (tensor<f32>) -> tensor<f32>
  return %0, %1, %step, %bound, %2 : tensor<i32>, tensor<f32>, tensor<i32>, tensor<i32>, tensor<f32>
}

// -----

// A constant reaches the inner loop through the outer one.
// CHECK-LABEL: func.func @nested
// CHECK: "hlov.while"(%{{.*}}) {{.*}} : (tensor<i32>) -> tensor<i32>
// CHECK: func.func private @inner_cond_1(%{{.*}}: tensor<i32>) -> tensor<i1>
// CHECK-NEXT: dense<7>
func.func @nested() -> tensor<i32> {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %bound = "hlo.constant"() {value = dense<7> : tensor<i32>} : () -> tensor<i32>
  %0:2 = "hlov.while"(%zero, %bound) {cond = @inner_cond, body = @outer_body} : (tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)
  return %0#0 : tensor<i32>
}
func.func private @inner_cond(%i: tensor<i32>, %bound: tensor<i32>) -> tensor<i1> {
  %0 = "hlo.compare"(%i, %bound) {direction = "LT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @outer_body(%i: tensor<i32>, %bound: tensor<i32>) -> (tensor<i32>, tensor<i32>) {
  %0:2 = "hlov.while"(%i, %bound) {cond = @inner_cond, body = @inner_body} : (tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)
  return %0#0, %bound : tensor<i32>, tensor<i32>
}
func.func private @inner_body(%i: tensor<i32>, %bound: tensor<i32>) -> (tensor<i32>, tensor<i32>) {
  %one = "hlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.add"(%i, %one) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  return %0, %bound : tensor<i32>, tensor<i32>
}
