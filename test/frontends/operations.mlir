// SPDX-License-Identifier: Apache-2.0
// RUN: %gristmill-opt %s | filecheck %s
// Every operation whose attributes are spelled differently in the two dialects.

// CHECK-LABEL: func.func public @main
func.func @main(%x: tensor<4x6xf32>, %u: tensor<4xui8>, %i: tensor<2x1xi32>, %s: tensor<i32>,
                %img: tensor<1x8x9x2xf32>, %w: tensor<3x2x2x4xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>

  // CHECK: "hlo.compare"({{.*}}) {direction = "LT", type = "FLOAT"}
  %0 = stablehlo.compare LT, %x, %x : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
  // CHECK: "hlo.compare"({{.*}}) {direction = "GE", type = "TOTALORDER"}
  %1 = stablehlo.compare GE, %x, %x, TOTALORDER : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>
  // CHECK: "hlo.compare"({{.*}}) {direction = "EQ", type = "UNSIGNED"}
  %2 = stablehlo.compare EQ, %u, %u : (tensor<4xui8>, tensor<4xui8>) -> tensor<4xi1>
  // CHECK: "hlo.compare"({{.*}}) {direction = "NE", type = "SIGNED"}
  %3 = stablehlo.compare NE, %s, %s : (tensor<i32>, tensor<i32>) -> tensor<i1>
  // CHECK: "hlo.compare"({{.*}}) {direction = "EQ", type = "UNSIGNED"} : (tensor<i1>
  %4 = stablehlo.compare EQ, %3, %3 : (tensor<i1>, tensor<i1>) -> tensor<i1>

  // CHECK: "hlo.iota"() {dimension = 1 : i64}
  %5 = stablehlo.iota dim = 1 : tensor<2x3xi32>
  // CHECK: "hlo.broadcast_in_dim"({{.*}}) {dimensions = array<i64: 0>}
  %6 = stablehlo.broadcast_in_dim %u, dims = [0] : (tensor<4xui8>) -> tensor<4x2xui8>
  // CHECK: "hlo.reduce_precision"({{.*}}) {exponent_bits = 5 : i64, mantissa_bits = 10 : i64}
  %7 = stablehlo.reduce_precision %x, format = e5m10 : tensor<4x6xf32>
  // CHECK: "hlo.slice"({{.*}}) {limit_indices = array<i64: 4, 6>, start_indices = array<i64: 1, 0>, strides = array<i64: 1, 2>}
  %8 = stablehlo.slice %x [1:4, 0:6:2] : (tensor<4x6xf32>) -> tensor<3x3xf32>
  // CHECK: "hlo.pad"({{.*}}) {high = array<i64: 0, 2>, interior = array<i64: 1, 0>, low = array<i64: 0, -1>}
  %9 = stablehlo.pad %x, %zero, low = [0, -1], high = [0, 2], interior = [1, 0] : (tensor<4x6xf32>, tensor<f32>) -> tensor<7x7xf32>
  // CHECK: "hlo.dynamic_slice"({{.*}}) {slice_sizes = array<i64: 2, 3>}
  %10 = stablehlo.dynamic_slice %x, %s, %s, sizes = [2, 3] : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>

  // CHECK: "hlo.gather"({{.*}}) {collapsed_slice_dims = array<i64: 0>, index_vector_dim = 1 : i64, indices_are_sorted = true, offset_dims = array<i64: 1>, operand_batching_dims = array<i64>, slice_sizes = array<i64: 1, 6>, start_index_map = array<i64: 0>, start_indices_batching_dims = array<i64>}
  %11 = "stablehlo.gather"(%x, %i) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    indices_are_sorted = true, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<2x1xi32>) -> tensor<2x6xf32>

  // CHECK: "hlo.dot_general"({{.*}}) {lhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, precision = "DEFAULT,HIGHEST", rhs_batching_dimensions = array<i64>, rhs_contracting_dimensions = array<i64: 1>}
  %12 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1], precision = [DEFAULT, HIGHEST] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>
  // CHECK: "hlo.dot_general"({{.*}}) {lhs_batching_dimensions = array<i64: 0>, lhs_contracting_dimensions = array<i64: 1>, rhs_batching_dimensions = array<i64: 0>
  %13 = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [1] x [1] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4xf32>

  // CHECK: "hlo.convolution"({{.*}}) {batch_group_count = 1 : i64, feature_group_count = 1 : i64, input_batch_dimension = 0 : i64, input_feature_dimension = 3 : i64, input_spatial_dimensions = array<i64: 1, 2>, kernel_input_feature_dimension = 2 : i64, kernel_output_feature_dimension = 3 : i64, kernel_spatial_dimensions = array<i64: 0, 1>, lhs_dilation = array<i64: 1, 1>, output_batch_dimension = 0 : i64, output_feature_dimension = 3 : i64, output_spatial_dimensions = array<i64: 1, 2>, padding_high = array<i64: 2, 0>, padding_low = array<i64: 1, 0>, rhs_dilation = array<i64: 1, 2>, window_reversal = array<i64: 0, 1>, window_strides = array<i64: 2, 1>}
  %14 = stablehlo.convolution(%img, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {stride = [2, 1], pad = [[1, 2], [0, 0]], rhs_dilate = [1, 2], reverse = [0, 1]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x8x9x2xf32>, tensor<3x2x2x4xf32>) -> tensor<1x5x7x4xf32>

  // CHECK: "hlo.triangular_solve"({{.*}}) {left_side = true, lower = false, transpose_a = "ADJOINT", unit_diagonal = true}
  %16 = "stablehlo.triangular_solve"(%12, %12) <{left_side = true, lower = false, transpose_a = #stablehlo<transpose ADJOINT>, unit_diagonal = true}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: "hlov.custom_call"({{.*}}) {backend_config = {axis = 1 : i64}, call_target_name = "acme.op", has_side_effect = true}
  %17 = stablehlo.custom_call @acme.op(%x) {api_version = 4 : i32, backend_config = {axis = 1 : i64}, has_side_effect = true} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  // Placement annotations vanish.
  // CHECK-NOT: Sharding
  %18 = stablehlo.custom_call @Sharding(%zero) : (tensor<f32>) -> tensor<f32>
  // CHECK: return %{{.*}} : tensor<f32>
  return %18 : tensor<f32>
}
