// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=ll | filecheck %s

// Rows of three elements are computed side by side: one vector has an element of each of eight rows.
// CHECK-LABEL: define void @kernel_0_row
// CHECK-COUNT-2: fadd {{.*}}<8 x float>
// CHECK:         store <8 x float>
func.func public @main(%a: tensor<1024x3xf32>) -> tensor<1024xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<1024x3xf32>, tensor<f32>) -> tensor<1024xf32>
  return %0 : tensor<1024xf32>
}
