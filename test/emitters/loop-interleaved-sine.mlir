// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile %s --emit=ll | filecheck %s --check-prefix=WIDE
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=ll | filecheck %s --check-prefix=NARROW

// A sine keeps many values of its own: of 16 registers two vectors side by side have enough, not four.
// WIDE-COUNT-4:    load <16 x float>
// NARROW-COUNT-2:  load <8 x float>
// NARROW-NOT:      load <8 x float>
func.func public @main(%a: tensor<64x1024xf32>) -> tensor<64x1024xf32> {
  %0 = stablehlo.sine %a : tensor<64x1024xf32>
  return %0 : tensor<64x1024xf32>
}
