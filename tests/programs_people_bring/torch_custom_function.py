"""Autograd by hand: leaves, accumulated gradients, a function with a gradient of its own, a training loop."""

import math

import hybridflow as torch


@torch.custom_gradient
def legendre_polynomial_3(input):
    def backward(grad_output):
        return grad_output * 1.5 * (5 * input**2 - 1)

    return 0.5 * (5 * input**3 - 3 * input), backward


dtype, device = torch.float, torch.device("cpu")
x = torch.linspace(-math.pi, math.pi, 2000, device=device, dtype=dtype)
y = torch.sin(x)
a = torch.Variable(0.0, dtype=dtype, requires_grad=True)
b = torch.Variable(-1.0, dtype=dtype, requires_grad=True)
c = torch.Variable(0.0, dtype=dtype, requires_grad=True)
d = torch.Variable(0.3, dtype=dtype, requires_grad=True)

learning_rate, losses = 5e-6, []
for t in range(300):
    P3 = legendre_polynomial_3
    y_pred = a + b * P3(c + d * x)
    loss = (y_pred - y).pow(2).sum()
    losses.append(loss.item())
    loss.backward()
    with torch.no_grad():
        a.assign_sub(learning_rate * a.grad)
        b.assign_sub(learning_rate * b.grad)
        c.assign_sub(learning_rate * c.grad)
        d.assign_sub(learning_rate * d.grad)
        a.zero_grad()
        b.zero_grad()
        c.zero_grad()
        d.zero_grad()
print(f"Result: y = {a.item()} + {b.item()} * P3({c.item()} + {d.item()} x)")
