// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: %gristmill compile %s --emit=ll | filecheck %s --check-prefix=LL

// An elementwise chain runs over the linear index, whatever the rank; a task is 4096 elements.
// CHECK-LABEL: func.func @kernel_0_loop
// CHECK:         memref.reinterpret_cast %arg0 {{.*}} to memref<131072xf32>
// CHECK:         %[[LOW:.*]] = arith.muli %arg{{.*}}, %c4096
// CHECK:         scf.for %[[I:.*]] = %[[LOW]] to
// CHECK-NEXT:      memref.load %{{.*}}[%[[I]]] : memref<131072xf32>
// CHECK-NOT:       scf.for
// CHECK:           memref.store

// LL: define void @kernel_0_loop
// LL: fadd <{{8|16}} x float>
func.func public @main(%a: tensor<64x32x64xf32>) -> tensor<64x32x64xf32> {
  %0 = stablehlo.add %a, %a : tensor<64x32x64xf32>
  %1 = stablehlo.abs %0 : tensor<64x32x64xf32>
  return %1 : tensor<64x32x64xf32>
}
