// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Counters of a ThreeFry stream; a running sum of a row's vectors; a scatter of window maxima.
// CHECK-LABEL: func.func @kernel_0_rng_bit_generator(
// CHECK:         arith.constant 466688986 : i32
// CHECK-LABEL: func.func @kernel_1_cumulative(
// CHECK:         vector.shuffle
// CHECK-NEXT:    arith.addf
// CHECK-LABEL: func.func @kernel_2_select_and_scatter(
// CHECK:         scf.for {{.*}} -> (i1, index, f32)
func.func public @main(%s: tensor<2xui64>, %x: tensor<16x100xf32>, %w: tensor<16x50xf32>)
    -> (tensor<2xui64>, tensor<64xui32>, tensor<16x100xf32>, tensor<16x100xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n, %bits = stablehlo.rng_bit_generator %s, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<64xui32>)
  %0 = "stablehlo.reduce_window"(%x, %z) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 1, 100>, padding = dense<[[0, 0], [99, 0]]> : tensor<2x2xi64>} : (tensor<16x100xf32>, tensor<f32>) -> tensor<16x100xf32>
  %1 = "stablehlo.select_and_scatter"(%0, %w, %z) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>} : (tensor<16x100xf32>, tensor<16x50xf32>, tensor<f32>) -> tensor<16x100xf32>
  return %n, %bits, %0, %1 : tensor<2xui64>, tensor<64xui32>, tensor<16x100xf32>, tensor<16x100xf32>
}
