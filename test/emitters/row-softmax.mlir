// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: env GRISTMILL_CPU=x86-64-v4 %gristmill compile %s --emit=ll | filecheck %s --check-prefix=LL
// RUN: env GRISTMILL_CPU=x86-64-v3 %gristmill compile %s --emit=ll | filecheck %s --check-prefix=LL

// Softmax is one kernel: three passes over a row, the exponentials kept in a row buffer in scratch memory.
// CHECK-LABEL: func.func @kernel_0_row
// CHECK-SAME:    (%[[X:.*]]: memref<64x1024xf32> {llvm.noalias}, %[[Y:.*]]: memref<64x1024xf32> {llvm.noalias}, %arg2: memref<1xi8> {llvm.noalias}, %arg3: memref<4224xi8> {llvm.noalias}, %[[B:.*]]: index, %[[E:.*]]: index)
// CHECK:         scf.for %[[ROW:.*]] = %[[B]] to %[[E]]
// CHECK:           %[[MAX:.*]] = scf.for {{.*}} iter_args
// CHECK:             memref.load %[[X]][%[[ROW]],
// CHECK:             llvm.intr.maxnum{{.*}}nnan
// CHECK:             llvm.intr.minnum{{.*}}nnan
// CHECK:           %[[KEPT:.*]] = memref.view %arg3
// By vectors; where the row's numbers are close, nothing is kept from underflowing.
// CHECK:           scf.if
// CHECK:             scf.for {{.*}} iter_args
// CHECK:               vector.load
// CHECK-NOT:           arith.cmpf
// CHECK:               vector.store %{{.*}}, %[[KEPT]]
// CHECK:           } else {
// CHECK:             scf.for {{.*}} iter_args
// CHECK:               arith.cmpf olt
// CHECK:               vector.store %{{.*}}, %[[KEPT]]
// By the sum, or where e^x is not tiny anywhere, by its reciprocal and a correction.
// CHECK:           arith.divf
// CHECK:           scf.if
// CHECK:             scf.for
// CHECK:               memref.load %[[KEPT]]
// CHECK-NOT:           arith.divf
// CHECK:               math.fma
// CHECK:               math.fma
// CHECK:               memref.store %{{.*}}, %[[Y]][%[[ROW]],
// CHECK:           } else {
// CHECK:             scf.for
// CHECK:               memref.load %[[KEPT]]
// CHECK:               arith.divf
// CHECK:               memref.store %{{.*}}, %[[Y]][%[[ROW]],
// CHECK-NOT:   func.func

// Every loop is vectorised and no math function is called.
// LL: define void @kernel_0_row
// LL: call nnan nsz <{{8|16}} x float> @llvm.maxnum
// The argument is never positive: 2^n is a shift and a product.
// LL-NOT: ldexp
// LL: shl <{{32|64}} x i32> %{{.*}}, splat (i32 23)
// LL: fadd <{{16|32}} x float>
// LL: fdiv <{{8|16}} x float>
// LL-NOT: call {{.*}} @exp
func.func public @main(%a: tensor<64x1024xf32>) -> tensor<64x1024xf32> {
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %n) applies stablehlo.maximum across dimensions = [1] : (tensor<64x1024xf32>, tensor<f32>) -> tensor<64xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<64xf32>) -> tensor<64x1024xf32>
  %2 = stablehlo.subtract %a, %1 : tensor<64x1024xf32>
  %3 = stablehlo.exponential %2 : tensor<64x1024xf32>
  %4 = stablehlo.reduce(%3 init: %z) applies stablehlo.add across dimensions = [1] : (tensor<64x1024xf32>, tensor<f32>) -> tensor<64xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<64xf32>) -> tensor<64x1024xf32>
  %6 = stablehlo.divide %3, %5 : tensor<64x1024xf32>
  return %6 : tensor<64x1024xf32>
}
