// RUN: %gristmill compile --target=cuda --emit=gpu %s | filecheck %s
// RUN: %gristmill compile --target=cuda --emit=ptx %s | filecheck %s --check-prefix=PTX

// An implicit matrix product: 6272 pixels by 128 features, 576 = 3 * 3 * 64 products a sum. Where a window leaves the
// input nothing is read and zeros arrive.
// CHECK-LABEL: gpu.func @kernel_0_convolution(
// CHECK: scf.for
// CHECK: nvgpu.device_async_wait
// CHECK: arith.cmpi sge
// CHECK: arith.cmpi slt
// CHECK: arith.select {{.*}} : index
// CHECK: nvgpu.device_async_copy {{.*}}, 8, %{{.*}} {bypassL1} : memref<401408xf16>
// CHECK: nvgpu.mma.sync

// PTX: cp.async.cg.shared.global
// PTX: mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
// PTX-NOT: .local
func.func @main(%x: tensor<8x28x28x64xf16>, %w: tensor<3x3x64x128xf16>) -> tensor<8x28x28x128xf16> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<8x28x28x64xf16>, tensor<3x3x64x128xf16>) -> tensor<8x28x28x128xf16>
  return %0 : tensor<8x28x28x128xf16>
}
