"""Torch peers of the speech models: transformers' Wav2Vec2, and the ASR encoder in torch's layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Builder, TorchPeer

if TYPE_CHECKING:
    import torch


def _wav2vec2_model(dtype: torch.dtype, device: str, tiny: bool) -> Any:
    """With the CTC head; without dropout, layer drop and masking, as ours is trained."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    from benchmarks.peers import hf

    off = dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout",
                         "feat_proj_dropout", "final_dropout", "layerdrop"), 0.0)
    config = Wav2Vec2Config(
        vocab_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, conv_dim=(16,) * 3, conv_kernel=(10, 3, 2), conv_stride=(5, 2, 2),
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, apply_spec_augment=False,
        **off) if tiny else Wav2Vec2Config(apply_spec_augment=False, **off)
    return hf.build(Wav2Vec2ForCTC, config, dtype, device)


def _audio(seed: int, batch: int, samples: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    import torch

    from benchmarks.peers import hf

    return torch.randn(batch, samples, generator=hf.generator(seed, device), dtype=dtype,
                       device=device)


def _wav2vec2(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """One second of audio to the logits of each frame."""
    from torch.nn.utils import parametrize

    model = _wav2vec2_model(dtype, device, tiny)
    # The kernel of the positions, worked out once instead of in each call.
    parametrize.remove_parametrizations(model.wav2vec2.encoder.pos_conv_embed.conv, "weight")
    samples = 400 if tiny else 16000
    return TorchPeer(model, lambda seed: (_audio(seed, batch, samples, dtype, device),),
                     lambda model, audio: model(audio).logits)


def _wav2vec2_train(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """Forward, CTC loss, backward and AdamW on three seconds of audio; feature encoder frozen."""
    import torch

    from benchmarks.peers import hf

    model = _wav2vec2_model(dtype, device, tiny)
    model.freeze_feature_encoder()
    cuda = device.startswith("cuda")
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4,
                                  weight_decay=0.005, fused=cuda)
    samples, letters = (400, 5) if tiny else (48000, 40)

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        draw = {"generator": hf.generator(seed, device), "device": device}
        labels = torch.randint(1, model.config.vocab_size, (batch, letters), **draw)
        # On the host, where torch's CTC wants them and a data loader has them.
        lengths = torch.randint(letters // 2, letters + 1, (batch,),
                                generator=hf.generator(seed, "cpu"))
        return _audio(seed, batch, samples, dtype, device), labels, lengths

    @torch.compiler.disable  # it reads the lengths, which cannot be traced
    def finish(logits: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        frames = torch.full((batch,), logits.shape[1], dtype=torch.long)
        log_probs = logits.float().log_softmax(-1).transpose(0, 1)
        loss = torch.nn.functional.ctc_loss(log_probs, labels, frames, lengths, blank=0)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def step(model: Any, audio: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor,
             ) -> torch.Tensor:
        return finish(model(audio).logits, labels, lengths)

    return TorchPeer(model, inputs, step, training=True,
                     no_graph="torch's CTC loss takes the labels' lengths from the host")


def _asr_encoder(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """Log-mel features of five seconds to hidden states."""
    import torch
    from torch import nn

    hidden, layers, heads, wide, mels, frames = (32, 2, 2, 64, 12, 40) if tiny else \
        (256, 12, 4, 2048, 80, 512)

    def shorter(length: int) -> int:
        return ((length - 1) // 2 - 1) // 2

    class AsrEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, hidden, 3, 2)
            self.second = nn.Conv2d(hidden, hidden, 3, 2)
            self.out = nn.Linear(shorter(mels) * hidden, hidden)
            self.layers = nn.ModuleList([
                nn.TransformerEncoderLayer(hidden, heads, wide, dropout=0.0, activation="relu",
                                           layer_norm_eps=1e-12, batch_first=True,
                                           norm_first=True) for _ in range(layers)])
            self.norm = nn.LayerNorm(hidden, eps=1e-12)
            length = shorter(frames)
            angles = torch.arange(length)[:, None] * 10000.0 ** (
                -torch.arange(0, hidden, 2) / hidden)
            sinusoids = torch.stack([angles.sin(), angles.cos()], -1).reshape(length, hidden)
            self.register_buffer("sinusoids", sinusoids, persistent=False)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            """features: [B, T, mels] -> [B, about T / 4, hidden]."""
            x = features[:, None].contiguous(memory_format=torch.channels_last)
            x = self.second(self.first(x).relu()).relu()
            # channels_last: frequency and channel of a frame lie together already.
            x = self.out(x.permute(0, 2, 3, 1).flatten(2)) * hidden**0.5 + self.sinusoids
            for layer in self.layers:
                x = layer(x)
            return self.norm(x)

    with torch.device(device):
        module = AsrEncoder().to(dtype).eval().to(memory_format=torch.channels_last)

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        return (_audio(seed, batch, frames * mels, dtype, device).view(batch, frames, mels),)

    return TorchPeer(module, inputs)


PEERS: dict[str, Builder] = {
    "wav2vec2": _wav2vec2,
    "wav2vec2_train": _wav2vec2_train,
    "asr_encoder": _asr_encoder,
}
