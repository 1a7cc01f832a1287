// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile %s --emit=ll | filecheck %s --check-prefix=WIDE
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=ll | filecheck %s --check-prefix=NARROW

// A chain of exponentials: eight vectors side by side, so that none waits for another, or four in 16 registers.
// CHECK-LABEL: func.func @kernel_0_loop
// CHECK:         scf.for
// CHECK:         } {llvm.loop_annotation = #[[SIDE_BY_SIDE:.*]]}
// WIDE-COUNT-8:    load <16 x float>
// NARROW-COUNT-4:  load <8 x float>
// NARROW-NOT:      load <8 x float>
func.func public @main(%a: tensor<64x1024xf32>) -> tensor<64x1024xf32> {
  %0 = stablehlo.exponential %a : tensor<64x1024xf32>
  %1 = stablehlo.exponential %0 : tensor<64x1024xf32>
  %2 = stablehlo.exponential %1 : tensor<64x1024xf32>
  return %2 : tensor<64x1024xf32>
}
