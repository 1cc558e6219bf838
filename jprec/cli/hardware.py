"""`jprec hardware`: which devices are known, how fast they are, and how their tensor cores add."""

import dataclasses
from typing import Annotated

import tyro

from jprec import hardware, records
from jprec.cli.trouble import Trouble


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Lists the devices whose tensor cores are emulated, or shows one with the source of each fact.

    Rates are peaks of dense products in TFLOP/s. Of a tensor core are shown the products that one
    block sums, the bits that it keeps below the largest of them, the format of its sums, and how
    they are rounded; h100 stands for FP8 by wgmma, h100_mma for mma.sync, likewise b200.
    """

    device: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[DEVICE]")] = ""
    """A device such as a100; none for all."""

    json: bool = False
    """Print JSON for machines."""

    def run(self) -> int:
        """Prints the table or one device; 0."""
        try:
            names = [self.device] if self.device else hardware.names()
            chosen = [hardware.get(name) for name in names]
        except ValueError as error:
            raise Trouble(str(error)) from error
        if self.json:
            print(records.dumps([dataclasses.asdict(device) for device in chosen], indent=1))
        elif self.device:
            print(details(chosen[0]))
        else:
            print(overview(chosen))
        return 0


_RATES = ("fp32", "tf32", "bf16", "fp16", "e4m3fn")


def overview(devices: list[hardware.Device]) -> str:
    """One line for each device."""
    head = f"{'device':10} {'':36}" + "".join(f"{name:>9}" for name in _RATES) + "    TB/s  block"
    lines = [f"{'':47}peak TFLOP/s, dense", head, "-" * len(head)]
    for device in devices:
        known = {rate.format: f"{rate.teraflops:g}" for rate in device.rates}
        rates = "".join(f"{known.get(name, '-'):>9}" for name in _RATES)
        memory = f"{device.bandwidth.terabytes:g}" if device.bandwidth else "-"
        blocks = ", ".join(
            f"{core.input_format} {core.products}"
            for core in device.tensor_cores
            if core.output_format == "fp32" and core.input_format != "e5m2"
        )
        lines.append(f"{device.name:10} {device.title:36}{rates}{memory:>8}  {blocks}")
    lines.append("")
    lines.append("block: products that one block sums. jprec hardware DEVICE names every source.")
    return "\n".join(lines)


def details(device: hardware.Device) -> str:
    """Everything that is known of one device, each fact with its source."""
    lines = [f"{device.name}: {device.title} ({device.architecture})", ""]
    for rate in device.rates:
        lines.append(
            f"  {rate.format:7} {rate.teraflops:8g} TFLOP/s, dense   {rate.status}: {rate.source}"
        )
    if device.bandwidth is not None:
        memory = device.bandwidth
        lines.append(
            f"  memory  {memory.terabytes:8g} TB/s             {memory.status}: {memory.source}"
        )
    lines += ["", "  tensor core: operands -> result: L products a block, F bits below the largest"]
    for core in device.tensor_cores:
        order = ", two interleaved halves, accumulator last" if core.interleaved else ""
        lines.append(
            f"  {core.input_format:>7} -> {core.output_format}: L = {core.products}, "
            f"F = {core.fraction_bits}, sums in {core.sum_format} {core.final_rounding}, least "
            f"exponent {core.min_exponent}{order}"
        )
        lines.append(f"          {core.status}: {core.source}")
    lines += ["", *(f"  {letters}: {source}" for letters, source in hardware.SOURCES.items())]
    return "\n".join(lines)
