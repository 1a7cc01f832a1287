// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: %gristmill compile %s --emit=rt | filecheck %s --check-prefix=RT

// The operand is copied only when it is another buffer than the result; then the update alone is written.
// Only where pointers are compared may they be equal.
// CHECK-LABEL: func.func @kernel_0_update(
// CHECK-NOT:     llvm.noalias
// CHECK:         memref.extract_aligned_pointer_as_index %arg0
// CHECK:         scf.if
// CHECK-LABEL: func.func @kernel_0_update_1(
// CHECK-SAME:    llvm.noalias
// CHECK:         arith.minsi
// CHECK:         arith.maxsi
// CHECK:         memref.store %{{.*}}, %arg3

// RT: rtv.launch
func.func public @main(%a: tensor<64x8xf32>, %u: tensor<1x8xf32>, %i: tensor<i32>) -> tensor<64x8xf32> {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %a, %u, %i, %z : (tensor<64x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<64x8xf32>
  return %0 : tensor<64x8xf32>
}
