// Everything that is not supported is reported at once, each with its place.
// RUN: not %gristmill compile %s 2>&1 | filecheck %s

// CHECK: gristmill: 2 things are not supported:
// CHECK-DAG: unsupported.mlir:7:1: func.func: element type index is not supported
// CHECK-DAG: unsupported.mlir:8:8: stablehlo.collective_permute: source_target_pairs names device 1, but a program runs on one device
func.func @main(%x: tensor<4xf32>, %t: tensor<4xindex>) -> tensor<4xf32> {
  %0 = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}
    : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
