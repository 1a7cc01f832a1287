// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// A chain of two dear functions: one loop each over a stretch of 512 elements, the value between them in scratch memory.
// CHECK-LABEL: func.func @kernel_0_loop
// CHECK:         scf.for {{.*}} step %c512
// CHECK:           %[[STAGE:.*]] = memref.view {{.*}} to memref<512xf32>
// CHECK:           scf.for
// CHECK:             memref.load %{{.*}} : memref<131072xf32>
// CHECK:             memref.store %{{.*}}, %[[STAGE]]
// CHECK:           scf.for
// CHECK:             memref.load %[[STAGE]]
// CHECK:             memref.store %{{.*}} : memref<131072xf32>
func.func public @main(%a: tensor<128x1024xf32>) -> tensor<128x1024xf32> {
  %0 = stablehlo.tanh %a : tensor<128x1024xf32>
  %1 = stablehlo.tanh %0 : tensor<128x1024xf32>
  return %1 : tensor<128x1024xf32>
}
