// Everything that is not supported is reported at once, each with its place.
// RUN: not %gristmill compile %s 2>&1 | filecheck %s

// CHECK: gristmill: 3 things are not supported:
// CHECK-DAG: unsupported.mlir:8:1: func.func: type !stablehlo.token is not supported
// CHECK-DAG: unsupported.mlir:10:8: stablehlo.collective_permute: not supported
// CHECK-DAG: unsupported.mlir:13:8: stablehlo.fft: element type complex<f32> is not supported
func.func @main(%x: tensor<4xf32>, %t: !stablehlo.token)
    -> (tensor<4xf32>, tensor<3xcomplex<f32>>) {
  %0 = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}
    : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.add %0, %x : tensor<4xf32>
  %2 = stablehlo.fft %1, type = RFFT, length = [4] : (tensor<4xf32>) -> tensor<3xcomplex<f32>>
  return %1, %2 : tensor<4xf32>, tensor<3xcomplex<f32>>
}
