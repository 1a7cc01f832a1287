// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=kernels %s | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile --emit=ll %s | filecheck %s --check-prefix=LLVM

// Bias and relu are applied to the tile of sums in scratch, in a scalar loop over a panel's 32 columns.
// CHECK-LABEL: func.func @{{.*}}_compute(
// CHECK: vector.fma
// CHECK: memref.load {{.*}} : memref<96xf32>
// CHECK-NEXT: arith.addf
// CHECK: maximum
// CHECK: memref.store

// LLVM vectorises it, with plain loads and stores.
// LLVM-NOT: gather
// LLVM: load <[[LANES:8|16]] x float>
// LLVM: fadd <[[LANES]] x float>
// LLVM: store <[[LANES]] x float>
// LLVM-NOT: scatter
func.func @main(%a: tensor<64x128xf32>, %b: tensor<128x96xf32>, %bias: tensor<96xf32>) -> tensor<64x96xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<64x128xf32>, tensor<128x96xf32>) -> tensor<64x96xf32>
  %1 = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<96xf32>) -> tensor<64x96xf32>
  %2 = stablehlo.add %0, %1 : tensor<64x96xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %3 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<64x96xf32>
  %4 = stablehlo.maximum %2, %3 : tensor<64x96xf32>
  return %4 : tensor<64x96xf32>
}
