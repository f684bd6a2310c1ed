"""Models in blocks: the same function in pieces, so that a search can run a part or share a prefix.

```python
model = torchvision.models.resnet18().eval()
images = torch.randn(8, 3, 224, 224)
blocks = split(model, images)  # 10 blocks; blocks.whole_reason is None
begin = cut(blocks, parse_part("last:25%"))
stored = compose(blocks[:begin])(images)
logits = run(blocks[begin:], stored)  # the bits of model(images)
```
"""

from stoker.records.part import PARTS as PARTS
from stoker.records.part import Part as Part
from stoker.records.part import parse_part as parse_part
from stoker.workload.blocks.block import Block as Block
from stoker.workload.blocks.block import Blocks as Blocks
from stoker.workload.blocks.block import Composition as Composition
from stoker.workload.blocks.block import compose as compose
from stoker.workload.blocks.block import run as run
from stoker.workload.blocks.cost import BlockCost as BlockCost
from stoker.workload.blocks.cost import describe as describe
from stoker.workload.blocks.division import split as split
from stoker.workload.blocks.identity import fingerprint as fingerprint
from stoker.workload.blocks.part import Joint as Joint
from stoker.workload.blocks.part import cut as cut
from stoker.workload.blocks.part import joint as joint
