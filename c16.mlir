func.func public @main(%a: tensor<100000x16xf32>) -> tensor<16xf32> {
 %z = stablehlo.constant dense<0.0> : tensor<f32>
 %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<100000x16xf32>, tensor<f32>) -> tensor<16xf32>
 return %0 : tensor<16xf32>
}