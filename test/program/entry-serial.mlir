// RUN: %python %S/Inputs/emit.py entry %s | filecheck %s

// A program without a parallel phase makes no OpenMP call and has no barrier.

// CHECK-NOT: omp
// CHECK-NOT: barrier
// CHECK-LABEL: llvm.func @gristmill_main(
// CHECK: llvm.call @gristmill_body(
// CHECK-LABEL: llvm.func internal @gristmill_body(
// CHECK: llvm.call @k_exp(
// CHECK-NOT: cond_br
// CHECK: llvm.return
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = "hlov.fusion"(%x) {calls = @k_exp, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}
func.func private @k_exp(tensor<64xf32>) -> tensor<64xf32>
