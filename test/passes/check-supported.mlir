// RUN: not %gristmill-opt %s --pass-pipeline="check-supported" 2>&1 | filecheck %s

// Everything unsupported is named in one run.
// CHECK: fft is not supported on the CPU yet
// CHECK-SAME: custom_call @elsewhere is not supported on the CPU yet
func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "hlo.fft"(%a) {fft_type = "FFT", fft_length = array<i64: 8>} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "hlov.custom_call"(%0) {call_target_name = "elsewhere"} : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
