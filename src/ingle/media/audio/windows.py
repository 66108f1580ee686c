"""Gemma 4's two analysis windows, as they were computed once: periodic Hann, 320 samples, float32.

The reference (transformers) computes 0.5 - 0.5 cos(2 pi n / 320) in float64 and rounds; MLX ports carry
one computed in float32. 219 of the 320 values differ by one unit in the last place, which the logarithm
turns into differences of up to 2.8e-3: so neither may be computed again on somebody's machine.
"""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

_REFERENCE = """
AAAAAH0fyjiBGso5d1RjOo8GyjpxyR07/yFjOw6DmjvYtsk7tSf/OzBoHTx6VT48elhiPNC2hDyKyJk8VV+wPPZ4yDwOE+I8FSv9
PC/fDD0M5Rs9pqUrPW8fPD3GUE09+TdfPUTTcT1okII9W4+MPX/llj3OkaE9O5OsPa/otz0NkcM9LYvPPeHV2z3zb+g9I1j1PZdG
AT7hBgg+R+wOPhr2FT6nIx0+O3QkPhvnKz6MezM+zjA7Ph4GQz63+ko+0A1TPpw+Wz5MjGM+EPZrPhF7dD56Gn0+uOmCPotShz5H
x4s+fEeQPrfSlD6GaJk+dQiePhCyoj7fZKc+biCsPkPksD7nr7U+4YK6PrZcvz7tPMQ+CSPJPpAOzj4E/9I+6fPXPsLs3D4S6eE+
WejmPhvq6z7Y7fA+EvP1Pkn5+j4AAAA/W4MCP3cGBT8UiQc/8woKP9OLDD93Cw8/n4kRPwsGFD9+gBY/uPgYP3tuGz+K4R0/pVEg
P5C+Ij8MKCU/3o0nP8nvKT+QTSw/+KYuP8X7MD+9SzM/pJY1P0LcNz9cHDo/ulY8PySLPj9huUA/POFCP3wCRT/tHEc/WTBJP4w8
Sz9SQU0/eD5PP80zUT8dIVM/OQZVP/HiVj8Wt1g/eoJaP+5EXD9I/l0/Wq5fP/xUYT8C8mI/RIVkP5oOZj/ejWc/6gJpP5ltaj/G
zWs/UCNtPxVubj/zrW8/zOJwP4AMcj/0KnM/CT50P6ZFdT+vQXY/DTJ3P6cWeD9o73g/OLx5PwV9ej+8MXs/Sdp7P552fD+qBn0/
X4p9P7EBfj+SbH4/+sp+P94cfz83Yn8//Zp/PyvHfz+95n8/r/l/PwAAgD+v+X8/veZ/PyvHfz/9mn8/N2J/P94cfz/6yn4/kmx+
P7EBfj9fin0/qgZ9P552fD9J2ns/vDF7PwV9ej84vHk/aO94P6cWeD8NMnc/r0F2P6ZFdT8JPnQ/9CpzP4AMcj/M4nA/861vPxVu
bj9QI20/xs1rP5ltaj/qAmk/3o1nP5oOZj9EhWQ/AvJiP/xUYT9arl8/SP5dP+5EXD96glo/FrdYP/HiVj85BlU/HSFTP80zUT94
Pk8/UkFNP4w8Sz9ZMEk/7RxHP3wCRT884UI/YblAPySLPj+6Vjw/XBw6P0LcNz+kljU/vUszP8X7MD/4pi4/kE0sP8nvKT/ejSc/
DCglP5C+Ij+lUSA/iuEdP3tuGz+4+Bg/foAWPwsGFD+fiRE/dwsPP9OLDD/zCgo/FIkHP3cGBT9bgwI/AAAAP0n5+j4S8/U+2O3w
Phvq6z5Z6OY+EunhPsLs3D7p89c+BP/SPpAOzj4JI8k+7TzEPrZcvz7hgro+56+1PkPksD5uIKw+32SnPhCyoj51CJ4+hmiZPrfS
lD58R5A+R8eLPotShz646YI+ehp9PhF7dD4Q9ms+TIxjPpw+Wz7QDVM+t/pKPh4GQz7OMDs+jHszPhvnKz47dCQ+pyMdPhr2FT5H
7A4+4QYIPpdGAT4jWPU982/oPeHV2z0ti889DZHDPa/otz07k6w9zpGhPX/llj1bj4w9aJCCPUTTcT35N189xlBNPW8fPD2mpSs9
DOUbPS/fDD0VK/08DhPiPPZ4yDxVX7A8isiZPNC2hDx6WGI8elU+PDBoHTy1J/872LbJOw6Dmjv/IWM7cckdO48Gyjp3VGM6gRrK
OX0fyjg=
"""
_FLOAT32 = """
AAAAAAAgyjgAHMo5AFRjOgAHyjqAyR07ACJjOwCDmjvAtsk7wCf/O0BoHTyAVT48gFhiPNC2hDyQyJk8UF+wPPB4yDwQE+I8ECv9
PDDfDD0Q5Rs9qKUrPXAfPD3IUE09+DdfPUjTcT1okII9XI+MPYDllj3QkaE9PJOsPbDotz0MkcM9LIvPPeDV2z30b+g9JFj1PZZG
AT7iBgg+SOwOPhr2FT6mIx0+PHQkPhrnKz6OezM+zjA7Ph4GQz64+ko+0A1TPp4+Wz5OjGM+EvZrPhR7dD54Gn0+uemCPopShz5I
x4s+fEeQPrbSlD6GaJk+dQiePhCyoj7gZKc+biCsPkTksD7or7U+4oK6Prdcvz7uPMQ+CiPJPpEOzj4F/9I+6fPXPsTs3D4S6eE+
W+jmPhvq6z7Y7fA+EvP1Pkr5+j4AAAA/XIMCP3cGBT8ViQc/8woKP9OLDD93Cw8/oIkRPwwGFD9+gBY/uPgYP3xuGz+K4R0/pVEg
P5C+Ij8OKCU/340nP8rvKT+RTSw/+KYuP8b7MD++SzM/pZY1P0PcNz9dHDo/u1Y8PySLPj9iuUA/PeFCP3wCRT/sHEc/WjBJP448
Sz9SQU0/eD5PP84zUT8dIVM/OgZVP/LiVj8Yt1g/eoJaP+5EXD9I/l0/Wq5fP/xUYT8C8mI/RIVkP5oOZj/ejWc/6gJpP5ltaj/G
zWs/UCNtPxVubj/0rW8/zOJwP4EMcj/0KnM/Cj50P6ZFdT+wQXY/DTJ3P6gWeD9o73g/OLx5PwZ9ej+8MXs/Stp7P552fD+qBn0/
YIp9P7ABfj+SbH4/+sp+P94cfz82Yn8//Zp/PyvHfz+85n8/r/l/PwAAgD+v+X8/vOZ/PyvHfz/9mn8/NmJ/P94cfz/6yn4/kmx+
P7ABfj9gin0/qgZ9P552fD9J2ns/uzF7PwV9ej84vHk/aO94P6gWeD8NMnc/r0F2P6RFdT8IPnQ/8ipzP4AMcj/M4nA/861vPxRu
bj9QI20/xc1rP5dtaj/rAmk/3o1nP5oOZj9EhWQ/AfJiP/tUYT9Yrl8/SP5dP+9EXD95glo/FbdYP/DiVj84BlU/HCFTP80zUT93
Pk8/UkFNP4o8Sz9ZMEk/6xxHP3gCRT894UI/YrlAPyKLPj+6Vjw/Whw6P0LcNz+mljU/vEszP8b7MD/4pi4/jk0sP8jvKT/cjSc/
DCglP5C+Ij+kUSA/iuEdP3puGz+1+Bg/fYAWPwwGFD+diRE/dwsPP9KLDD/zCgo/EokHP3MGBT9dgwI/AAAAP0X5+j4R8/U+0+3w
Phrq6z5U6OY+EenhPsXs3D7o89c+/v7SPo4Ozj4EI8k+6zzEPrhcvz7fgro+6a+1PkHksD5oIKw+3WSnPgqyoj5zCJ4+iGiZPrTS
lD58R5A+RMeLPoRShz616YI+ehp9Pgx7dD4Q9ms+RoxjPpw+Wz7IDVM+qvpKPiQGQz7MMDs+hHszPhrnKz4ydCQ+piMdPhL2FT5E
7A4+5AYIPpRGAT4UWPU97G/oPdDV2z0oi889EJHDPajotz08k6w9yJGhPXDllj1Uj4w9WJCCPTjTcT34N189uFBNPXAfPD2YpSs9
8OQbPTjfDD0QK/088BLiPPB4yDxAX7A8gMiZPMC2hDxgWGI8gFU+PCBoHTyAJ/87wLbJO8CCmjsAImM7gMkdOwAGyjoAVGM6ABzK
OQAgyjg=
"""


def _stored(text: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)


WINDOWS = {"reference": _stored(_REFERENCE), "float32": _stored(_FLOAT32)}
