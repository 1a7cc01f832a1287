// RUN: %gristmill-opt %s --split-input-file --verify-diagnostics --pass-pipeline=resolve-shape-assertions

// expected-error {{expected 7, found 5 (b = (unknown)), not {x}}}
func.func @main(%b: tensor<i32>) {
  %false = "hlo.constant"() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  %five = "hlo.constant"() {value = dense<5> : tensor<i32>} : () -> tensor<i32>
  %seven = "hlo.constant"() {value = dense<7> : tensor<i64>} : () -> tensor<i64>
  "hlov.custom_call"(%false, %five, %seven, %b) {call_target_name = "shape_assertion", has_side_effect = true, error_message = "expected {1}, found {0} (b = {2}), not {x}"} : (tensor<i1>, tensor<i32>, tensor<i64>, tensor<i32>) -> ()
  return
}

// -----

// expected-error {{a shape assertion of the program does not hold}}
func.func @main() {
  %false = "hlo.constant"() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  "hlov.custom_call"(%false) {call_target_name = "shape_assertion", has_side_effect = true} : (tensor<i1>) -> ()
  return
}
