"""Convolutional networks: those of Bolt (batch 32) and of Opara (batch 1); MobileNetV2 and
ConvNeXt for their depthwise convolutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from benchmarks.workloads.workload import Program, Request, Workload, module_program, scaled
from examples.models import convnext, googlenet, inception, mobilenet, repvgg, resnet, vgg


def _images(name: str, create: Callable[[Any], Any], published: Any, tiny: Any,
            request: Request) -> Program:
    config = dataclasses.replace(tiny if request.tiny else published, dtype=request.jax_dtype)
    size = config.image

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        return (jax.random.normal(key, (request.batch, size, size, 3), config.dtype),)

    def make() -> nnx.Module:
        return create(config)

    program = module_program(make, inputs, f"{size}x{size}x3", name=name)
    return dataclasses.replace(program, state=lambda: scaled(make))


def _workload(name: str, title: str, module: Any, published: Any, tiny: Any,
              batches: tuple[int, ...], notes: str = "", *, slow: bool = False) -> Workload:
    return Workload(name, title, "vision",
                    lambda r: _images(name, module.create, published, tiny, r),
                    batches=batches, slow=slow, notes=notes)


WORKLOADS = (
    _workload("resnet18", "ResNet-18", resnet, resnet.resnet18(), resnet.tiny(), (1,)),
    _workload("resnet50", "ResNet-50", resnet, resnet.resnet50(), resnet.tiny(bottleneck=True),
              (1, 32)),
    _workload("vgg16", "VGG-16", vgg, vgg.vgg16(), vgg.tiny(), (1, 32), "without batch norm"),
    _workload("repvgg_a0", "RepVGG-A0", repvgg, repvgg.repvgg_a0(), repvgg.tiny(), (1, 32),
              "deploy form"),
    _workload("repvggaug_a0", "RepVGGAug-A0", repvgg, repvgg.repvggaug_a0(),
              repvgg.tiny(augmented=True), (1, 32), "deploy form; 1x1 convolutions by Bolt"),
    _workload("googlenet", "GoogLeNet", googlenet, googlenet.googlenet(), googlenet.tiny(), (1,),
              slow=True),
    _workload("inception_v3", "Inception-v3", inception, inception.inception_v3(),
              inception.tiny(), (1,), slow=True),
    _workload("mobilenet_v2", "MobileNetV2", mobilenet, mobilenet.mobilenet_v2(),
              mobilenet.tiny(), (1, 32)),
    _workload("convnext_t", "ConvNeXt-T", convnext, convnext.convnext_tiny(), convnext.tiny(),
              (1, 32)),
)
