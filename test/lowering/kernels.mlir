// RUN: %gristmill compile %s --emit=llvm | filecheck %s

// Kernels are in the LLVM dialect only: bare pointers that do not alias, no memref descriptors, the maximum one intrinsic.
// CHECK-NOT:   memref.
// CHECK-NOT:   arith.
// CHECK:       llvm.func @kernel_0_loop(%{{.*}}: !llvm.ptr {llvm.noalias}, %{{.*}}: !llvm.ptr {llvm.noalias}
// CHECK:         llvm.getelementptr
// CHECK:         llvm.load
// CHECK:         llvm.intr.maximum
// CHECK:         llvm.store
// The entry calls them.
// CHECK:       llvm.func @gristmill_main
// CHECK:       llvm.func {{.*}}@gristmill_body
// CHECK:         llvm.call @kernel_0_loop
func.func public @main(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
  %0 = stablehlo.maximum %a, %b : tensor<64xf32>
  return %0 : tensor<64xf32>
}
