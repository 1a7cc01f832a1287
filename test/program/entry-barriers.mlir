// RUN: %python %S/Inputs/emit.py entry %s | filecheck %s

// Independent parallel kernels need no barrier between them; the one that reads both does, and so does the
// second phase of a kernel. Serial kernels run on thread 0 and need none among themselves.

// CHECK-LABEL: llvm.func @gristmill_main(
// CHECK: omp.parallel num_threads(
// CHECK: llvm.call @gristmill_body(
// CHECK-LABEL: llvm.func internal @gristmill_body(
// CHECK-NOT: call @gristmill_barrier
// CHECK: llvm.call @k_left(
// CHECK-NOT: call @gristmill_barrier
// CHECK: llvm.call @k_right(
// CHECK: llvm.call @gristmill_barrier(
// CHECK: llvm.call @k_both_0(
// CHECK: llvm.call @gristmill_barrier(
// CHECK: llvm.call @k_both_1(
// CHECK: llvm.call @gristmill_barrier(
// CHECK: llvm.call @k_small(
// CHECK-NOT: call @gristmill_barrier
// CHECK: llvm.call @k_small(
// CHECK-NOT: call @gristmill_barrier
// CHECK: llvm.return
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = "hlov.fusion"(%x) {calls = @k_left, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  %1 = "hlov.fusion"(%x) {calls = @k_right, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  %2 = "hlov.fusion"(%0, %1) {calls = @k_both, kind = "loop"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %3 = "hlov.fusion"(%2) {calls = @k_small, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  %4 = "hlov.fusion"(%3) {calls = @k_small, kind = "loop"} : (tensor<64xf32>) -> tensor<64xf32>
  return %4 : tensor<64xf32>
}
func.func private @k_left(tensor<64xf32>) -> tensor<64xf32> attributes {test.tasks = array<i64: -8>}
func.func private @k_right(tensor<64xf32>) -> tensor<64xf32> attributes {test.tasks = array<i64: -8>}
func.func private @k_both(tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32> attributes {test.tasks = array<i64: -8, -4>}
func.func private @k_small(tensor<64xf32>) -> tensor<64xf32>
