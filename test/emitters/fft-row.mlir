// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Vectors along a line: the first step takes complex numbers of the operand apart, the last one puts those of the
// result together. The first step has no twiddle factors, the last one those of every fourth or eighth point.
// CHECK:      memref.global "private" constant @{{.*}} : memref<{{3|7}}x2x{{32|64}}xf32>
// CHECK:      func.func @kernel_0_fft(%[[X:.*]]: memref<64x256xcomplex<f32>> {{.*}}, %[[Y:.*]]: memref<64x256xcomplex<f32>> {{.*}}, %{{.*}}: memref<1xi8>
// CHECK:      scf.for %[[LINE:.*]] = %arg4 to %arg5
// CHECK:      %[[FLAT:.*]] = memref.reinterpret_cast %[[X]]
// CHECK-NEXT: %[[PARTS:.*]] = builtin.unrealized_conversion_cast %[[FLAT]] : memref<16384xcomplex<f32>> to memref<32768xf32>
// CHECK:      memref.reinterpret_cast %[[Y]]
// CHECK-NEXT: %[[RESULT:.*]] = builtin.unrealized_conversion_cast
// CHECK-NOT:  memref.get_global
// CHECK:      %[[LOW:.*]] = vector.load %[[PARTS]]
// CHECK:      %[[HIGH:.*]] = vector.load %[[PARTS]]
// CHECK:      vector.shuffle %[[LOW]], %[[HIGH]] [0, 2, 4,
// CHECK:      vector.shuffle %[[LOW]], %[[HIGH]] [1, 3, 5,
// CHECK:      memref.get_global
// CHECK:      vector.store %{{.*}}, %[[RESULT]]
func.func public @main(%x: tensor<64x256xcomplex<f32>>) -> tensor<64x256xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [256] : (tensor<64x256xcomplex<f32>>) -> tensor<64x256xcomplex<f32>>
  return %0 : tensor<64x256xcomplex<f32>>
}
