// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=COPIED
// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=PLACE

// Channels innermost: rows are copied with their padding, and nothing is masked.
// COPIED-LABEL: func.func @kernel_1_convolution_1(
// COPIED-NOT: vector.maskedload
// COPIED: vector.broadcast %{{.*}} : f32 to vector<[[L:[0-9]+]]xf32>
// COPIED-NOT: vector.maskedload
// COPIED: return

// One feature, rows side by side: vectors of a row's outputs, read where they are and multiplied by a broadcast weight;
// those at the borders read under masks.
// PLACE-LABEL: func.func @kernel_0_convolution(
// PLACE: scf.for {{.*}} -> (vector<[[L:[0-9]+]]xf32>, vector<[[L]]xf32>
// PLACE: vector.broadcast %{{.*}} : f32 to vector<[[L]]xf32>
// PLACE: vector.load %{{.*}} vector<[[L]]xf32>
// PLACE: vector.maskedload
func.func public @main(%x: tensor<1x1x64x200xf32>, %w: tensor<1x1x3x5xf32>, %y: tensor<1x64x200x3xf32>, %v: tensor<3x3x3x1xf32>)
    -> (tensor<1x1x64x200xf32>, tensor<1x64x200x1xf32>) {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[1, 1], [2, 2]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x1x64x200xf32>, tensor<1x1x3x5xf32>) -> tensor<1x1x64x200xf32>
  %1 = stablehlo.convolution(%y, %v) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x64x200x3xf32>, tensor<3x3x3x1xf32>) -> tensor<1x64x200x1xf32>
  return %0, %1 : tensor<1x1x64x200xf32>, tensor<1x64x200x1xf32>
}
