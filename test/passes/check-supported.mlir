// RUN: not %gristmill-opt %s --pass-pipeline="check-supported" 2>&1 | filecheck %s

// Everything unsupported is named in one run.
// CHECK: custom_call @nowhere: no function is registered
// CHECK-SAME: custom_call @elsewhere: no function is registered
func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "hlov.custom_call"(%a) {call_target_name = "nowhere"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "hlov.custom_call"(%0) {call_target_name = "elsewhere"} : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
