module @jit_transformer attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32xi32>, %arg1: tensor<2x256x64xf32>, %arg2: tensor<96x64xf32>, %arg3: tensor<64xf32>, %arg4: tensor<2x64xf32>, %arg5: tensor<2x64xf32>, %arg6: tensor<2x64x64xf32>, %arg7: tensor<32x64xf32>, %arg8: tensor<2x64x192xf32>, %arg9: tensor<2x64x256xf32>) -> (tensor<32x96xf32> {jax.result_info = "result[0]"}, tensor<32xi32> {jax.result_info = "result[1]"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<32xi32>
    %1 = stablehlo.compare LT, %arg0, %0, SIGNED : (tensor<32xi32>, tensor<32xi32>) -> tensor<32xi1>
    %c_0 = stablehlo.constant dense<96> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<32xi32>
    %3 = stablehlo.add %arg0, %2 : tensor<32xi32>
    %4 = stablehlo.select %1, %3, %arg0 : tensor<32xi1>, tensor<32xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<32xi32>) -> tensor<32x1xi32>
    %6 = "stablehlo.gather"(%arg2, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<96x64xf32>, tensor<32x1xi32>) -> tensor<32x64xf32>
    %7 = stablehlo.add %6, %arg7 : tensor<32x64xf32>
    %8 = stablehlo.slice %arg4 [0:1, 0:64] : (tensor<2x64xf32>) -> tensor<1x64xf32>
    %9 = stablehlo.reshape %8 : (tensor<1x64xf32>) -> tensor<64xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.reduce(%7 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_1 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %13 = stablehlo.divide %11, %12 : tensor<32x1xf32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %15 = stablehlo.subtract %7, %14 : tensor<32x64xf32>
    %16 = chlo.square %15 : tensor<32x64xf32> -> tensor<32x64xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %17 = stablehlo.reduce(%16 init: %cst_2) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_3 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %20 = stablehlo.divide %18, %19 : tensor<32x1xf32>
    %21 = stablehlo.broadcast_in_dim %13, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %22 = stablehlo.subtract %7, %21 : tensor<32x64xf32>
    %cst_4 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %24 = stablehlo.add %20, %23 : tensor<32x1xf32>
    %25 = stablehlo.rsqrt %24 : tensor<32x1xf32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %27 = stablehlo.multiply %22, %26 : tensor<32x64xf32>
    %28 = stablehlo.broadcast_in_dim %9, dims = [1] : (tensor<64xf32>) -> tensor<1x64xf32>
    %29 = stablehlo.broadcast_in_dim %28, dims = [0, 1] : (tensor<1x64xf32>) -> tensor<32x64xf32>
    %30 = stablehlo.multiply %27, %29 : tensor<32x64xf32>
    %31 = stablehlo.slice %arg8 [0:1, 0:64, 0:192] : (tensor<2x64x192xf32>) -> tensor<1x64x192xf32>
    %32 = stablehlo.reshape %31 : (tensor<1x64x192xf32>) -> tensor<64x192xf32>
    %33 = stablehlo.slice %arg6 [0:1, 0:64, 0:64] : (tensor<2x64x64xf32>) -> tensor<1x64x64xf32>
    %34 = stablehlo.reshape %33 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %35 = stablehlo.dot_general %30, %32, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x192xf32>) -> tensor<32x192xf32>
    %36 = stablehlo.reshape %35 : (tensor<32x192xf32>) -> tensor<32x3x4x16xf32>
    %37 = stablehlo.slice %36 [0:32, 0:1, 0:4, 0:16] : (tensor<32x3x4x16xf32>) -> tensor<32x1x4x16xf32>
    %38 = stablehlo.reshape %37 : (tensor<32x1x4x16xf32>) -> tensor<32x4x16xf32>
    %39 = stablehlo.slice %36 [0:32, 1:2, 0:4, 0:16] : (tensor<32x3x4x16xf32>) -> tensor<32x1x4x16xf32>
    %40 = stablehlo.reshape %39 : (tensor<32x1x4x16xf32>) -> tensor<32x4x16xf32>
    %41 = stablehlo.slice %36 [0:32, 2:3, 0:4, 0:16] : (tensor<32x3x4x16xf32>) -> tensor<32x1x4x16xf32>
    %42 = stablehlo.reshape %41 : (tensor<32x1x4x16xf32>) -> tensor<32x4x16xf32>
    %43 = stablehlo.dot_general %38, %40, batching_dims = [1] x [1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<32x4x16xf32>, tensor<32x4x16xf32>) -> tensor<4x32x32xf32>
    %cst_5 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x32x32xf32>
    %45 = stablehlo.divide %43, %44 : tensor<4x32x32xf32>
    %c_6 = stablehlo.constant dense<true> : tensor<i1>
    %46 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<i1>) -> tensor<32x32xi1>
    %47 = call @tril(%46) : (tensor<32x32xi1>) -> tensor<32x32xi1>
    %cst_7 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %48 = call @_where(%47, %45, %cst_7) : (tensor<32x32xi1>, tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32x32xf32>
    %cst_8 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %49 = stablehlo.reduce(%48 init: %cst_8) applies stablehlo.maximum across dimensions = [2] : (tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32xf32>
    %cst_9 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %50 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %51 = stablehlo.maximum %50, %49 : tensor<4x32xf32>
    %52 = stablehlo.broadcast_in_dim %51, dims = [0, 1] : (tensor<4x32xf32>) -> tensor<4x32x1xf32>
    %53 = stablehlo.broadcast_in_dim %52, dims = [0, 1, 2] : (tensor<4x32x1xf32>) -> tensor<4x32x32xf32>
    %54 = stablehlo.subtract %48, %53 : tensor<4x32x32xf32>
    %55 = stablehlo.exponential %54 : tensor<4x32x32xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %56 = stablehlo.reduce(%55 init: %cst_10) applies stablehlo.add across dimensions = [2] : (tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32xf32>
    %57 = stablehlo.broadcast_in_dim %56, dims = [0, 1] : (tensor<4x32xf32>) -> tensor<4x32x1xf32>
    %58 = stablehlo.broadcast_in_dim %57, dims = [0, 1, 2] : (tensor<4x32x1xf32>) -> tensor<4x32x32xf32>
    %59 = stablehlo.divide %55, %58 : tensor<4x32x32xf32>
    %60 = stablehlo.dot_general %42, %59, batching_dims = [1] x [0], contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<32x4x16xf32>, tensor<4x32x32xf32>) -> tensor<4x16x32xf32>
    %61 = stablehlo.transpose %60, dims = [2, 0, 1] : (tensor<4x16x32xf32>) -> tensor<32x4x16xf32>
    %62 = stablehlo.reshape %61 : (tensor<32x4x16xf32>) -> tensor<32x64xf32>
    %63 = stablehlo.dot_general %62, %34, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %64 = stablehlo.add %7, %63 : tensor<32x64xf32>
    %65 = stablehlo.slice %arg5 [0:1, 0:64] : (tensor<2x64xf32>) -> tensor<1x64xf32>
    %66 = stablehlo.reshape %65 : (tensor<1x64xf32>) -> tensor<64xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %67 = stablehlo.reduce(%64 init: %cst_11) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %68 = stablehlo.broadcast_in_dim %67, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_12 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %69 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %70 = stablehlo.divide %68, %69 : tensor<32x1xf32>
    %71 = stablehlo.broadcast_in_dim %70, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %72 = stablehlo.subtract %64, %71 : tensor<32x64xf32>
    %73 = chlo.square %72 : tensor<32x64xf32> -> tensor<32x64xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %74 = stablehlo.reduce(%73 init: %cst_13) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %75 = stablehlo.broadcast_in_dim %74, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_14 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %76 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %77 = stablehlo.divide %75, %76 : tensor<32x1xf32>
    %78 = stablehlo.broadcast_in_dim %70, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %79 = stablehlo.subtract %64, %78 : tensor<32x64xf32>
    %cst_15 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %80 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %81 = stablehlo.add %77, %80 : tensor<32x1xf32>
    %82 = stablehlo.rsqrt %81 : tensor<32x1xf32>
    %83 = stablehlo.broadcast_in_dim %82, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %84 = stablehlo.multiply %79, %83 : tensor<32x64xf32>
    %85 = stablehlo.broadcast_in_dim %66, dims = [1] : (tensor<64xf32>) -> tensor<1x64xf32>
    %86 = stablehlo.broadcast_in_dim %85, dims = [0, 1] : (tensor<1x64xf32>) -> tensor<32x64xf32>
    %87 = stablehlo.multiply %84, %86 : tensor<32x64xf32>
    %88 = stablehlo.slice %arg9 [0:1, 0:64, 0:256] : (tensor<2x64x256xf32>) -> tensor<1x64x256xf32>
    %89 = stablehlo.reshape %88 : (tensor<1x64x256xf32>) -> tensor<64x256xf32>
    %90 = stablehlo.dot_general %87, %89, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x256xf32>) -> tensor<32x256xf32>
    %cst_16 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %91 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<32x256xf32>
    %92 = stablehlo.multiply %91, %90 : tensor<32x256xf32>
    %93 = stablehlo.negate %90 : tensor<32x256xf32>
    %cst_17 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %94 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<32x256xf32>
    %95 = stablehlo.multiply %93, %94 : tensor<32x256xf32>
    %96 = chlo.erfc %95 : tensor<32x256xf32> -> tensor<32x256xf32>
    %97 = stablehlo.multiply %92, %96 : tensor<32x256xf32>
    %98 = stablehlo.slice %arg1 [0:1, 0:256, 0:64] : (tensor<2x256x64xf32>) -> tensor<1x256x64xf32>
    %99 = stablehlo.reshape %98 : (tensor<1x256x64xf32>) -> tensor<256x64xf32>
    %100 = stablehlo.dot_general %97, %99, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x256xf32>, tensor<256x64xf32>) -> tensor<32x64xf32>
    %101 = stablehlo.add %64, %100 : tensor<32x64xf32>
    %102 = stablehlo.slice %arg4 [1:2, 0:64] : (tensor<2x64xf32>) -> tensor<1x64xf32>
    %103 = stablehlo.reshape %102 : (tensor<1x64xf32>) -> tensor<64xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %104 = stablehlo.reduce(%101 init: %cst_18) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %105 = stablehlo.broadcast_in_dim %104, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_19 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %106 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %107 = stablehlo.divide %105, %106 : tensor<32x1xf32>
    %108 = stablehlo.broadcast_in_dim %107, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %109 = stablehlo.subtract %101, %108 : tensor<32x64xf32>
    %110 = chlo.square %109 : tensor<32x64xf32> -> tensor<32x64xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %111 = stablehlo.reduce(%110 init: %cst_20) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %112 = stablehlo.broadcast_in_dim %111, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_21 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %113 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %114 = stablehlo.divide %112, %113 : tensor<32x1xf32>
    %115 = stablehlo.broadcast_in_dim %107, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %116 = stablehlo.subtract %101, %115 : tensor<32x64xf32>
    %cst_22 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %117 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %118 = stablehlo.add %114, %117 : tensor<32x1xf32>
    %119 = stablehlo.rsqrt %118 : tensor<32x1xf32>
    %120 = stablehlo.broadcast_in_dim %119, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %121 = stablehlo.multiply %116, %120 : tensor<32x64xf32>
    %122 = stablehlo.broadcast_in_dim %103, dims = [1] : (tensor<64xf32>) -> tensor<1x64xf32>
    %123 = stablehlo.broadcast_in_dim %122, dims = [0, 1] : (tensor<1x64xf32>) -> tensor<32x64xf32>
    %124 = stablehlo.multiply %121, %123 : tensor<32x64xf32>
    %125 = stablehlo.slice %arg8 [1:2, 0:64, 0:192] : (tensor<2x64x192xf32>) -> tensor<1x64x192xf32>
    %126 = stablehlo.reshape %125 : (tensor<1x64x192xf32>) -> tensor<64x192xf32>
    %127 = stablehlo.slice %arg6 [1:2, 0:64, 0:64] : (tensor<2x64x64xf32>) -> tensor<1x64x64xf32>
    %128 = stablehlo.reshape %127 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %129 = stablehlo.dot_general %124, %126, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x192xf32>) -> tensor<32x192xf32>
    %130 = stablehlo.reshape %129 : (tensor<32x192xf32>) -> tensor<32x3x4x16xf32>
    %131 = stablehlo.slice %130 [0:32, 0:1, 0:4, 0:16] : (tensor<32x3x4x16xf32>) -> tensor<32x1x4x16xf32>
    %132 = stablehlo.reshape %131 : (tensor<32x1x4x16xf32>) -> tensor<32x4x16xf32>
    %133 = stablehlo.slice %130 [0:32, 1:2, 0:4, 0:16] : (tensor<32x3x4x16xf32>) -> tensor<32x1x4x16xf32>
    %134 = stablehlo.reshape %133 : (tensor<32x1x4x16xf32>) -> tensor<32x4x16xf32>
    %135 = stablehlo.slice %130 [0:32, 2:3, 0:4, 0:16] : (tensor<32x3x4x16xf32>) -> tensor<32x1x4x16xf32>
    %136 = stablehlo.reshape %135 : (tensor<32x1x4x16xf32>) -> tensor<32x4x16xf32>
    %137 = stablehlo.dot_general %132, %134, batching_dims = [1] x [1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<32x4x16xf32>, tensor<32x4x16xf32>) -> tensor<4x32x32xf32>
    %cst_23 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %138 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4x32x32xf32>
    %139 = stablehlo.divide %137, %138 : tensor<4x32x32xf32>
    %c_24 = stablehlo.constant dense<true> : tensor<i1>
    %140 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<i1>) -> tensor<32x32xi1>
    %141 = call @tril(%140) : (tensor<32x32xi1>) -> tensor<32x32xi1>
    %cst_25 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %142 = call @_where(%141, %139, %cst_25) : (tensor<32x32xi1>, tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32x32xf32>
    %cst_26 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %143 = stablehlo.reduce(%142 init: %cst_26) applies stablehlo.maximum across dimensions = [2] : (tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32xf32>
    %cst_27 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %144 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %145 = stablehlo.maximum %144, %143 : tensor<4x32xf32>
    %146 = stablehlo.broadcast_in_dim %145, dims = [0, 1] : (tensor<4x32xf32>) -> tensor<4x32x1xf32>
    %147 = stablehlo.broadcast_in_dim %146, dims = [0, 1, 2] : (tensor<4x32x1xf32>) -> tensor<4x32x32xf32>
    %148 = stablehlo.subtract %142, %147 : tensor<4x32x32xf32>
    %149 = stablehlo.exponential %148 : tensor<4x32x32xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %150 = stablehlo.reduce(%149 init: %cst_28) applies stablehlo.add across dimensions = [2] : (tensor<4x32x32xf32>, tensor<f32>) -> tensor<4x32xf32>
    %151 = stablehlo.broadcast_in_dim %150, dims = [0, 1] : (tensor<4x32xf32>) -> tensor<4x32x1xf32>
    %152 = stablehlo.broadcast_in_dim %151, dims = [0, 1, 2] : (tensor<4x32x1xf32>) -> tensor<4x32x32xf32>
    %153 = stablehlo.divide %149, %152 : tensor<4x32x32xf32>
    %154 = stablehlo.dot_general %136, %153, batching_dims = [1] x [0], contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<32x4x16xf32>, tensor<4x32x32xf32>) -> tensor<4x16x32xf32>
    %155 = stablehlo.transpose %154, dims = [2, 0, 1] : (tensor<4x16x32xf32>) -> tensor<32x4x16xf32>
    %156 = stablehlo.reshape %155 : (tensor<32x4x16xf32>) -> tensor<32x64xf32>
    %157 = stablehlo.dot_general %156, %128, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %158 = stablehlo.add %101, %157 : tensor<32x64xf32>
    %159 = stablehlo.slice %arg5 [1:2, 0:64] : (tensor<2x64xf32>) -> tensor<1x64xf32>
    %160 = stablehlo.reshape %159 : (tensor<1x64xf32>) -> tensor<64xf32>
    %cst_29 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %161 = stablehlo.reduce(%158 init: %cst_29) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %162 = stablehlo.broadcast_in_dim %161, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_30 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %163 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %164 = stablehlo.divide %162, %163 : tensor<32x1xf32>
    %165 = stablehlo.broadcast_in_dim %164, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %166 = stablehlo.subtract %158, %165 : tensor<32x64xf32>
    %167 = chlo.square %166 : tensor<32x64xf32> -> tensor<32x64xf32>
    %cst_31 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %168 = stablehlo.reduce(%167 init: %cst_31) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %169 = stablehlo.broadcast_in_dim %168, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_32 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %170 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %171 = stablehlo.divide %169, %170 : tensor<32x1xf32>
    %172 = stablehlo.broadcast_in_dim %164, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %173 = stablehlo.subtract %158, %172 : tensor<32x64xf32>
    %cst_33 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %174 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %175 = stablehlo.add %171, %174 : tensor<32x1xf32>
    %176 = stablehlo.rsqrt %175 : tensor<32x1xf32>
    %177 = stablehlo.broadcast_in_dim %176, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %178 = stablehlo.multiply %173, %177 : tensor<32x64xf32>
    %179 = stablehlo.broadcast_in_dim %160, dims = [1] : (tensor<64xf32>) -> tensor<1x64xf32>
    %180 = stablehlo.broadcast_in_dim %179, dims = [0, 1] : (tensor<1x64xf32>) -> tensor<32x64xf32>
    %181 = stablehlo.multiply %178, %180 : tensor<32x64xf32>
    %182 = stablehlo.slice %arg9 [1:2, 0:64, 0:256] : (tensor<2x64x256xf32>) -> tensor<1x64x256xf32>
    %183 = stablehlo.reshape %182 : (tensor<1x64x256xf32>) -> tensor<64x256xf32>
    %184 = stablehlo.dot_general %181, %183, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x256xf32>) -> tensor<32x256xf32>
    %cst_34 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %185 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<32x256xf32>
    %186 = stablehlo.multiply %185, %184 : tensor<32x256xf32>
    %187 = stablehlo.negate %184 : tensor<32x256xf32>
    %cst_35 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %188 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<32x256xf32>
    %189 = stablehlo.multiply %187, %188 : tensor<32x256xf32>
    %190 = chlo.erfc %189 : tensor<32x256xf32> -> tensor<32x256xf32>
    %191 = stablehlo.multiply %186, %190 : tensor<32x256xf32>
    %192 = stablehlo.slice %arg1 [1:2, 0:256, 0:64] : (tensor<2x256x64xf32>) -> tensor<1x256x64xf32>
    %193 = stablehlo.reshape %192 : (tensor<1x256x64xf32>) -> tensor<256x64xf32>
    %194 = stablehlo.dot_general %191, %193, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x256xf32>, tensor<256x64xf32>) -> tensor<32x64xf32>
    %195 = stablehlo.add %158, %194 : tensor<32x64xf32>
    %cst_36 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %196 = stablehlo.reduce(%195 init: %cst_36) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %197 = stablehlo.broadcast_in_dim %196, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_37 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %198 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %199 = stablehlo.divide %197, %198 : tensor<32x1xf32>
    %200 = stablehlo.broadcast_in_dim %199, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %201 = stablehlo.subtract %195, %200 : tensor<32x64xf32>
    %202 = chlo.square %201 : tensor<32x64xf32> -> tensor<32x64xf32>
    %cst_38 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %203 = stablehlo.reduce(%202 init: %cst_38) applies stablehlo.add across dimensions = [1] : (tensor<32x64xf32>, tensor<f32>) -> tensor<32xf32>
    %204 = stablehlo.broadcast_in_dim %203, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %cst_39 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %205 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %206 = stablehlo.divide %204, %205 : tensor<32x1xf32>
    %207 = stablehlo.broadcast_in_dim %199, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %208 = stablehlo.subtract %195, %207 : tensor<32x64xf32>
    %cst_40 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %209 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<32x1xf32>
    %210 = stablehlo.add %206, %209 : tensor<32x1xf32>
    %211 = stablehlo.rsqrt %210 : tensor<32x1xf32>
    %212 = stablehlo.broadcast_in_dim %211, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %213 = stablehlo.multiply %208, %212 : tensor<32x64xf32>
    %214 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<64xf32>) -> tensor<1x64xf32>
    %215 = stablehlo.broadcast_in_dim %214, dims = [0, 1] : (tensor<1x64xf32>) -> tensor<32x64xf32>
    %216 = stablehlo.multiply %213, %215 : tensor<32x64xf32>
    %217 = stablehlo.transpose %arg2, dims = [1, 0] : (tensor<96x64xf32>) -> tensor<64x96xf32>
    %218 = stablehlo.dot_general %216, %217, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<32x64xf32>, tensor<64x96xf32>) -> tensor<32x96xf32>
    %cst_41 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
    %219 = stablehlo.broadcast_in_dim %cst_41, dims = [] : (tensor<f32>) -> tensor<32x96xf32>
    %220 = stablehlo.divide %218, %219 : tensor<32x96xf32>
    %cst_42 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %221 = stablehlo.reduce(%220 init: %cst_42) applies stablehlo.maximum across dimensions = [1] : (tensor<32x96xf32>, tensor<f32>) -> tensor<32xf32>
    %cst_43 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %222 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %223 = stablehlo.maximum %222, %221 : tensor<32xf32>
    %224 = stablehlo.broadcast_in_dim %223, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %225 = stablehlo.broadcast_in_dim %224, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x96xf32>
    %226 = stablehlo.subtract %220, %225 : tensor<32x96xf32>
    %227 = stablehlo.exponential %226 : tensor<32x96xf32>
    %cst_44 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %228 = stablehlo.reduce(%227 init: %cst_44) applies stablehlo.add across dimensions = [1] : (tensor<32x96xf32>, tensor<f32>) -> tensor<32xf32>
    %229 = stablehlo.broadcast_in_dim %228, dims = [0] : (tensor<32xf32>) -> tensor<32x1xf32>
    %230 = stablehlo.broadcast_in_dim %229, dims = [0, 1] : (tensor<32x1xf32>) -> tensor<32x96xf32>
    %231 = stablehlo.divide %227, %230 : tensor<32x96xf32>
    %232 = call @argmax(%220) : (tensor<32x96xf32>) -> tensor<32xi32>
    return %231, %232 : tensor<32x96xf32>, tensor<32xi32>
  }
  func.func private @tril(%arg0: tensor<32x32xi1>) -> tensor<32x32xi1> {
    %0 = stablehlo.iota dim = 0 : tensor<32x32xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<32x32xi32>
    %2 = stablehlo.add %0, %1 : tensor<32x32xi32>
    %3 = stablehlo.iota dim = 1 : tensor<32x32xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<32x32xi32>, tensor<32x32xi32>) -> tensor<32x32xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %5 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i1>) -> tensor<32x32xi1>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<32x32xi1>, tensor<32x32xi1>
    return %6 : tensor<32x32xi1>
  }
  func.func private @_where(%arg0: tensor<32x32xi1>, %arg1: tensor<4x32x32xf32>, %arg2: tensor<f32>) -> tensor<4x32x32xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [1, 2] : (tensor<32x32xi1>) -> tensor<4x32x32xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x32x32xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<4x32x32xi1>, tensor<4x32x32xf32>
    return %3 : tensor<4x32x32xf32>
  }
  func.func private @argmax(%arg0: tensor<32x96xf32>) -> tensor<32xi32> {
    %0 = stablehlo.iota dim = 1 : tensor<32x96xi32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.reduce(%arg0 init: %cst), (%0 init: %c) across dimensions = [1] : (tensor<32x96xf32>, tensor<32x96xi32>, tensor<f32>, tensor<i32>) -> (tensor<32xf32>, tensor<32xi32>)
     reducer(%arg1: tensor<f32>, %arg3: tensor<f32>) (%arg2: tensor<i32>, %arg4: tensor<i32>)  {
      %2 = stablehlo.compare GT, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %3 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.or %2, %3 : tensor<i1>
      %5 = stablehlo.compare EQ, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %6 = stablehlo.compare LT, %arg2, %arg4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %7 = stablehlo.and %5, %6 : tensor<i1>
      %8 = stablehlo.or %4, %7 : tensor<i1>
      %9 = stablehlo.select %4, %arg1, %arg3 : tensor<i1>, tensor<f32>
      %10 = stablehlo.select %8, %arg2, %arg4 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<f32>, tensor<i32>
    }
    return %1#1 : tensor<32xi32>
  }
}
