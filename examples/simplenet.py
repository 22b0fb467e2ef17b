"""A small network with RMSNorm. Only the import of RMSNorm differs from a program that writes the layer itself."""

import torch
from torch import nn
from truenorm.torch import LlamaRMSNorm as RMSNorm


class SimpleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 5)
        self.rms_norm = RMSNorm(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return self.rms_norm(x)


if __name__ == "__main__":
    net = SimpleNet()
    input_data = torch.randn(2, 10)
    output = net(input_data)
    print("Input shape:", input_data.shape)
    print("Output shape:", output.shape)
    print("Output:", output)
