"""Trains a small character-level transformer on the text of this repository's own documentation, on device "tpu".

4 layers, width 256, 4 heads, sequence 128, batch 4, dropout, AdamW. At the end it writes a sample of what it learned.
"""

import argparse
import pathlib
import time

import torch
from torch import nn
from tqdm import tqdm

LAYERS, WIDTH, HEADS, SEQUENCE, BATCH, DROPOUT = 4, 256, 4, 128, 4, 0.1


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each with its norm in front."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROPOUT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, width] to the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        dropout = DROPOUT if self.training else 0.0
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Next-character model."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, length] to logits [batch, length, vocabulary]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        return self.head(self.norm(self.blocks(x)))


def load_text() -> str:
    """Returns the repository's documentation as one text."""
    root = pathlib.Path(__file__).resolve().parent.parent
    paths = sorted([*root.glob("*.md"), *root.glob("docs/*.md")])
    return "\n".join(path.read_text() for path in paths)


def sample(model: Transformer, alphabet: list[str], prompt: str, length: int, device: torch.device) -> str:
    """Returns `prompt` continued by `length` characters drawn from the model."""
    model.eval()
    index = {character: number for number, character in enumerate(alphabet)}
    # A fixed window keeps one set of programs for all lengths; only the last position's logits count.
    window = torch.zeros(1, SEQUENCE, dtype=torch.long, device=device)
    text = prompt
    with torch.no_grad():
        for _ in range(length):
            recent = [index.get(character, 0) for character in text[-SEQUENCE:]]
            window.zero_()
            window[0, : len(recent)] = torch.tensor(recent, device=device)
            logits = model(window)[0, len(recent) - 1] / 0.7
            text += alphabet[int(torch.multinomial(logits.softmax(dim=-1), 1).item())]
    model.train()
    return text


def main() -> None:
    """Trains and prints losses, times and a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sample", type=int, default=200, help="characters to write at the end")
    parser.add_argument("--precision", choices=["medium", "high", "highest"], default="medium")
    parser.add_argument("--device", default=None, help="default: the accelerator")
    options = parser.parse_args()

    device = torch.device(options.device) if options.device else torch.accelerator.current_accelerator()
    assert device is not None
    torch.set_float32_matmul_precision(options.precision)
    torch.manual_seed(0)
    text = load_text()
    alphabet = sorted(set(text))
    index = {character: number for number, character in enumerate(alphabet)}
    data = torch.tensor([index[character] for character in text])
    model = Transformer(len(alphabet)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    choose = torch.Generator().manual_seed(0)

    losses: list[torch.Tensor] = []
    first_seconds = 0.0
    begin = time.perf_counter()
    for step in tqdm(range(options.steps), leave=False):
        starts = torch.randint(len(data) - SEQUENCE - 1, (BATCH,), generator=choose)
        batch = torch.stack([data[start : start + SEQUENCE + 1] for start in starts.tolist()]).to(device)
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step == 0:
            torch.accelerator.synchronize()
            first_seconds = time.perf_counter() - begin
            begin = time.perf_counter()
    torch.accelerator.synchronize()
    seconds = (time.perf_counter() - begin) / max(1, options.steps - 1)
    tail = torch.stack(losses[-10:]).mean().item()
    print(f"{len(text):,} characters, {len(alphabet)} kinds | loss {losses[0].item():.3f} -> {tail:.3f}")
    print(f"first step {first_seconds:.2f} s | step {seconds * 1e3:.1f} ms")
    print("--- sample ---")
    print(sample(model, alphabet, "A tensor ", options.sample, device))


if __name__ == "__main__":
    main()
