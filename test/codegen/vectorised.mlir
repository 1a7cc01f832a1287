// LLVM IR after optimisation: loops over contiguous data become vectors as wide as the registers of the
// target, and no wider.
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=ll -o - | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=asm -o - | filecheck %s --check-prefix=ASM

// CHECK: load <8 x float>
// CHECK: fmul <8 x float>
// CHECK: store <8 x float>
// CHECK: "prefer-vector-width"="256"
// CHECK-SAME: "target-cpu"="x86-64-v3"
// ASM: ymm
// ASM-NOT: zmm
func.func @main(%x: tensor<4096xf32>, %y: tensor<4096xf32>) -> tensor<4096xf32> {
  %0 = stablehlo.multiply %x, %y : tensor<4096xf32>
  %1 = stablehlo.subtract %0, %x : tensor<4096xf32>
  return %1 : tensor<4096xf32>
}
