// RUN: %gristmill-opt %s --pass-pipeline=order-effects,verify-hlo | filecheck %s

// One token runs through every call with an effect, loops and branches included; the pure call is left alone.
// CHECK-LABEL: func.func public @main
// CHECK: %[[T0:.*]] = "hlo.constant"() {value = dense<true> : tensor<i1>}
// CHECK: %[[T1:.*]] = "hlov.custom_call"(%arg0, %[[T0]]) {{.*}}token_operands = array<i64: 1>, token_results = array<i64: 0>
// CHECK: %[[W:.*]]:2 = "hlov.while"(%arg0, %[[T1]]) {body = @body, cond = @cond}
// CHECK: "hlov.custom_call"(%[[W]]#0) {call_target_name = "pure"}
// CHECK: "hlov.custom_call"(%[[W]]#1) {{.*}}token_operands = array<i64: 0>, token_results = array<i64: 0>
// CHECK: return %[[W]]#0 : tensor<i32>
func.func public @main(%n: tensor<i32>) -> tensor<i32> {
  "hlov.custom_call"(%n) {call_target_name = "a", has_side_effect = true} : (tensor<i32>) -> ()
  %0 = "hlov.while"(%n) {cond = @cond, body = @body} : (tensor<i32>) -> tensor<i32>
  %1 = "hlov.custom_call"(%0) {call_target_name = "pure"} : (tensor<i32>) -> tensor<i32>
  "hlov.custom_call"() {call_target_name = "c", has_side_effect = true} : () -> ()
  return %0 : tensor<i32>
}
// CHECK: func.func private @cond(%{{.*}}: tensor<i32>, %{{.*}}: tensor<i1>) -> tensor<i1>
func.func private @cond(%i: tensor<i32>) -> tensor<i1> {
  %zero = "hlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32>
  %0 = "hlo.compare"(%i, %zero) {direction = "GT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
// CHECK: func.func private @body(%[[I:.*]]: tensor<i32>, %[[T:.*]]: tensor<i1>) -> (tensor<i32>, tensor<i1>)
// CHECK: %[[B:.*]]:2 = "hlov.if"(%{{.*}}, %[[I]], %[[T]]) {branches = [@yes, @no]}
// CHECK: return %[[B]]#0, %[[B]]#1
func.func private @body(%i: tensor<i32>) -> tensor<i32> {
  %one = "hlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>
  %p = "hlo.compare"(%i, %one) {direction = "GT", type = "SIGNED"} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %0 = "hlov.if"(%p, %i) {branches = [@yes, @no]} : (tensor<i1>, tensor<i32>) -> tensor<i32>
  return %0 : tensor<i32>
}
// CHECK: func.func private @yes(%[[I:.*]]: tensor<i32>, %[[T:.*]]: tensor<i1>) -> (tensor<i32>, tensor<i1>)
// CHECK: %[[R:.*]]:2 = "hlov.custom_call"(%[[I]], %[[T]]) {{.*}}token_results = array<i64: 1>
// CHECK: return %[[R]]#0, %[[R]]#1
func.func private @yes(%i: tensor<i32>) -> tensor<i32> {
  %0 = "hlov.custom_call"(%i) {call_target_name = "b", has_side_effect = true} : (tensor<i32>) -> tensor<i32>
  return %0 : tensor<i32>
}
// CHECK: func.func private @no(%[[I:.*]]: tensor<i32>, %[[T:.*]]: tensor<i1>) -> (tensor<i32>, tensor<i1>)
// CHECK: return %[[I]], %[[T]]
func.func private @no(%i: tensor<i32>) -> tensor<i32> {
  return %i : tensor<i32>
}
