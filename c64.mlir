func.func public @main(%a: tensor<50000x64xf32>) -> tensor<64xf32> {
 %z = stablehlo.constant dense<0.0> : tensor<f32>
 %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<50000x64xf32>, tensor<f32>) -> tensor<64xf32>
 return %0 : tensor<64xf32>
}