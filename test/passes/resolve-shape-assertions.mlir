// RUN: %gristmill-opt %s --pass-pipeline=resolve-shape-assertions | filecheck %s

// CHECK-LABEL: func.func @held_is_gone
// CHECK-NEXT: return
func.func @held_is_gone() {
  %true = "hlo.constant"() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
  %n = "hlo.constant"() {value = dense<4> : tensor<i32>} : () -> tensor<i32>
  "hlov.custom_call"(%true, %n) {call_target_name = "shape_assertion", has_side_effect = true, error_message = "n = {0}"} : (tensor<i1>, tensor<i32>) -> ()
  return
}

// CHECK-LABEL: func.func @others_stay
// CHECK-NEXT: "hlov.custom_call"(%{{.*}}) {call_target_name = "shape_assertion"
// CHECK-NEXT: "hlo.constant"
// CHECK-NEXT: "hlov.custom_call"(%{{.*}}) {call_target_name = "print"
// CHECK-NEXT: return
func.func @others_stay(%p: tensor<i1>) {
  "hlov.custom_call"(%p) {call_target_name = "shape_assertion", has_side_effect = true} : (tensor<i1>) -> ()
  %true = "hlo.constant"() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
  "hlov.custom_call"(%true) {call_target_name = "print", has_side_effect = true} : (tensor<i1>) -> ()
  return
}
