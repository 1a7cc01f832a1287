// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// The first of two dimensions, in place: vectors of columns of the result, and the last columns, fewer than a vector's
// lanes, element by element.
// CHECK: func.func @kernel_0_fft_1(%arg0: memref<64x66xcomplex<f32>> {{.*}}, %[[Y:.*]]: memref<64x66xcomplex<f32>>
// CHECK: scf.for %{{.*}} = %arg4 to %arg5
// CHECK: %[[WHOLE:.*]] = arith.cmpi eq
// CHECK: scf.if %[[WHOLE]] {
// CHECK:   %[[PARTS:.*]] = builtin.unrealized_conversion_cast {{.*}} to memref<8448xf32>
// CHECK:   vector.load %[[PARTS]]
// CHECK: } else {
// CHECK:   memref.load %[[Y]]
// CHECK:   memref.store %{{.*}}, %[[Y]]
func.func public @main(%x: tensor<64x66xcomplex<f32>>) -> tensor<64x66xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [64, 66] : (tensor<64x66xcomplex<f32>>) -> tensor<64x66xcomplex<f32>>
  return %0 : tensor<64x66xcomplex<f32>>
}
