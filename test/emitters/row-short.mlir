// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=ll | filecheck %s

// A row of a few vectors is summed by vectors, not unrolled and added up one by one.
// CHECK-LABEL: define void @kernel_0_row
// CHECK-COUNT-4: fadd reassoc <8 x float>
// CHECK-NOT:     fadd float
func.func public @main(%a: tensor<1024x64xf32>) -> tensor<1024xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<1024x64xf32>, tensor<f32>) -> tensor<1024xf32>
  return %0 : tensor<1024xf32>
}
