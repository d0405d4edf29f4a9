"""Settings of speech: the task, its networks, and the sources of what they are trained on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, MinLen

from drivetrain.data.recipe import Parted, Source
from drivetrain.spec.settings import (
    Component,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Settings,
    Whole,
    bits,
    cost,
    nothing,
)

Rate = Annotated[int, Ge(8000), Le(48000)]
"""Samples of sound a second."""
Solver = Literal["euler", "midpoint"]
"""How a flow is followed."""
Score = Literal["pesq", "stoi"]
"""A judgement by a model of hearing."""
Seconds = Annotated[float, Ge(0.1), Le(60)]
"""How long a segment is."""
Decibels = tuple[float, float]
"""From the one to the other, drawn evenly."""


@dataclass(frozen=True, kw_only=True)
class Framed(Settings):
    """Sound in segments, and the windows in which its spectrum is seen."""

    rate: Annotated[Rate, bits("samples of sound a second")] = 16000
    seconds: Annotated[Seconds, bits("how long a segment is")] = 1.0
    window: Annotated[int | None, Ge(32), bits("samples in a window; null: a power of two near to 32 ms")] = None
    hop: Annotated[Count | None, bits("samples from window to window; null: a quarter of one")] = None

    @property
    def window_size(self) -> int:
        """Samples in a window."""
        # Of 32 ms the power of two below, since an FFT is fastest there: 256 at 8 kHz, 512 at 16 kHz, 1024 at 44.1 kHz.
        return self.window or 1 << round(self.rate * 0.032).bit_length() - 1

    @property
    def hop_size(self) -> int:
        """Samples from window to window."""
        return self.hop or self.window_size // 4

    @property
    def samples(self) -> int:
        """Samples in a segment."""
        return round(self.rate * self.seconds)

    @property
    def chunk(self) -> int:
        """Samples that `infer` takes at a time: a segment, or a little more, so that windows of the next chunk, half of
        one later, are those of this one."""
        return -(-self.samples // (2 * self.hop_size)) * 2 * self.hop_size

    def __post_init__(self) -> None:
        # Windows fade in and out: farther apart, samples between two of them would be heard of by neither in full.
        if self.hop_size > self.window_size // 2:
            raise ValueError(
                f"hop {self.hop_size} is more than half of a window of {self.window_size}: sound gets lost"
            )
        if self.samples < self.window_size:
            raise ValueError(f"a segment of {self.samples} samples is shorter than a window of {self.window_size}")


@dataclass(frozen=True, kw_only=True)
class UNet(Settings):
    """How large a denoiser is."""

    width: Annotated[Count, bits("channels at the full resolution; twice as many at each half")] = 16
    depth: Annotated[int, Ge(1), Le(6), bits("how often the resolution is halved")] = 4
    blocks: Annotated[Count, bits("residual blocks at each resolution, on the way down and on the way up")] = 1


@dataclass(frozen=True, kw_only=True)
class Denoiser(UNet, Framed, Component):
    """A U-Net on the spectrogram that gives each of its places a mask and a turn of the phase.

    Width 8 and depth 3 at 8 kHz train in a minute on a CPU; 44100 Hz, window 2048, hop 420, width 16 and depth 4 is
    about what resemble-enhance was published with.
    """

    factory: ClassVar[str] = "drivetrain.tasks.speech.denoiser:Denoiser"
    kind: Annotated[Literal["denoiser"], bits("takes noise away")] = "denoiser"


@dataclass(frozen=True, kw_only=True)
class Vocoder(Framed, Component):
    """A mel autoencoder, and a vocoder that makes sound of what it decodes.

    8 kHz, 40 bands, width 64 and depth 2 train in a minute on a CPU; 44100 Hz, window 2048, hop 420, 128 bands, width
    512 and depth 8 is the published size: that of Vocos, at the rate and with the latent of resemble-enhance.
    """

    factory: ClassVar[str] = "drivetrain.tasks.speech.vocoder:Vocoder"
    kind: Annotated[Literal["vocoder"], bits("mel autoencoder and vocoder")] = "vocoder"
    bands: Annotated[int, Ge(8), bits("mel bands")] = 80
    latent: Annotated[int, Ge(4), bits("numbers that a frame is encoded in")] = 64
    linear: Annotated[Whole, bits("linear layers behind the encoder, which keep the latent's rank low")] = 2
    extra: Annotated[Whole, bits("numbers of a frame that the decoder tells the vocoder beside the mel bands")] = 32
    width: Annotated[Count, bits("channels of encoder, decoder and vocoder")] = 256
    depth: Annotated[Count, bits("blocks of each of them")] = 4


@dataclass(frozen=True, kw_only=True)
class Weights(Settings):
    """How much each part of the loss counts."""

    wave: Annotated[NonNegative, bits("mean absolute difference of the samples")] = 5.0
    spectrum: Annotated[NonNegative, bits("STFT distance, over windows of 10, 25 and 50 ms")] = 1.0

    def __post_init__(self) -> None:
        if not self.wave and not self.spectrum:
            raise ValueError("every weight is 0")


@dataclass(frozen=True, kw_only=True)
class Listening(Component):
    """What all tasks on speech have."""

    reads: ClassVar[tuple[str, ...]] = ("speech", "harmonics")
    model: Framed
    scores: Annotated[tuple[Score, ...], cost("judgements of validation samples; they need the extra `scores`")] = ()
    shown: Annotated[Whole, nothing("validation samples to hear and to see after each evaluation")] = 4

    @staticmethod
    def derive(task: Listening, source: Any) -> dict[str, Any]:
        """What a source takes from the model where the recipe leaves it open."""
        return {"rate": task.model.rate, "seconds": task.model.seconds}


@dataclass(frozen=True, kw_only=True)
class Speech(Listening):
    """Speech without its noise."""

    factory: ClassVar[str] = "drivetrain.tasks.speech.task:SpeechTask"
    kind: Annotated[Literal["speech"], bits("speech")] = "speech"
    model: Annotated[Denoiser, bits("the network")] = field(default_factory=Denoiser)
    target: Annotated[
        Literal["speech", "clean"],
        bits("speech: noise goes, room and colour stay; clean: what `distort` did to the speech goes as well"),
    ] = "speech"
    loss: Annotated[Weights, bits("the parts of the loss")] = field(default_factory=Weights)


@dataclass(frozen=True, kw_only=True)
class Discriminator(Settings):
    """Networks that tell speech from what the vocoder makes."""

    periods: Annotated[tuple[Annotated[int, Ge(2)], ...], bits("samples from column to column; () for none")] = (
        2,
        3,
        5,
        7,
        11,
    )
    spectra: Annotated[bool, bits("whether spectra of 10, 25 and 50 ms are looked at as well")] = True
    width: Annotated[Count, bits("channels of the first layers; 32 as published")] = 32

    def __post_init__(self) -> None:
        if not self.periods and not self.spectra:
            raise ValueError("there are neither periods nor spectra to look at")


@dataclass(frozen=True, kw_only=True)
class VocoderWeights(Settings):
    """How much each part of the generator's loss counts."""

    mel: Annotated[NonNegative, bits("mean absolute difference of log mel bands, after the autoencoder")] = 0.5
    spectrum: Annotated[Positive, bits("STFT distance, over windows of 10, 25 and 50 ms")] = 1.0
    adversarial: Annotated[NonNegative, bits("what the discriminator says")] = 0.1
    features: Annotated[NonNegative, bits("relative difference of what the discriminator's layers see")] = 0.2


@dataclass(frozen=True, kw_only=True)
class Vocoding(Listening):
    """Speech through a mel spectrogram and back: stage 1 of enhancement."""

    factory: ClassVar[str] = "drivetrain.tasks.speech.vocoding:Vocoding"
    kind: Annotated[Literal["vocoder"], bits("mel autoencoder and vocoder, against a discriminator")] = "vocoder"
    model: Annotated[Vocoder, bits("the generator")] = field(default_factory=Vocoder)
    discriminator: Annotated[Discriminator, bits("the other network")] = field(default_factory=Discriminator)
    adversarial: Annotated[
        Literal["hinge", "squares"] | None, bits("the loss of both sides; null: the generator trains alone")
    ] = "hinge"
    loss: Annotated[VocoderWeights, bits("the parts of the generator's loss")] = field(default_factory=VocoderWeights)


@dataclass(frozen=True, kw_only=True)
class Flow(Settings):
    """What takes a latent from what was heard to clean speech."""

    width: Annotated[Count, bits("channels")] = 256
    depth: Annotated[Count, bits("blocks")] = 6
    temperature: Annotated[Fraction, bits("share of noise in where it starts; the rest is what was heard")] = 0.5
    solver: Annotated[Solver, cost("one look at the network in each step, or two")] = "midpoint"
    steps: Annotated[Count, cost("of the solver")] = 8
    denoised: Annotated[Fraction, cost("share of the denoised in what is heard, the rest is the mixture")] = 1.0


@dataclass(frozen=True, kw_only=True)
class EnhancerWeights(Weights):
    """How much each part of the loss counts; the flow's is the only one that the flow hears of."""

    flow: Annotated[Positive, bits("mean squared error of the velocity")] = 1.0


@dataclass(frozen=True, kw_only=True)
class Enhancing(Listening):
    """Clean speech in the latent space of a vocoder that is trained already: stage 2 of enhancement."""

    factory: ClassVar[str] = "drivetrain.tasks.speech.enhancing:Enhancing"
    loads: ClassVar[tuple[str, ...]] = ("generator",)
    kind: Annotated[Literal["enhancer"], bits("denoiser, and a flow in a vocoder's latent space")] = "enhancer"
    model: Annotated[Vocoder, bits("the vocoder, as stage 1 had it")] = field(default_factory=Vocoder)
    denoiser: Annotated[UNet, bits("the denoiser; its windows are the vocoder's")] = field(default_factory=UNet)
    flow: Annotated[Flow, bits("the flow")] = field(default_factory=Flow)
    loss: Annotated[EnhancerWeights, bits("the parts of the loss")] = field(default_factory=EnhancerWeights)

    @property
    def denoising(self) -> Denoiser:
        """The denoiser's settings."""
        # Both look at the same spectrogram: the denoiser's windows cannot be others.
        framed = {each.name: getattr(self.model, each.name) for each in fields(Framed)}
        return Denoiser(**framed, width=self.denoiser.width, depth=self.denoiser.depth, blocks=self.denoiser.blocks)


@dataclass(frozen=True, kw_only=True)
class Distort(Settings):
    """What happens to sound on its way: each effect with its own probability, in an order that is drawn."""

    reverb: Annotated[Fraction, bits("probability of a room, one of the responses")] = 0.0
    equalizer: Annotated[Fraction, bits("probability that three bands are louder or softer")] = 0.0
    gains: Annotated[Decibels, bits("dB of a band")] = (-12.0, 12.0)
    clip: Annotated[Fraction, bits("probability of overdrive")] = 0.0
    overdrive: Annotated[Decibels, bits("dB of the peak above where it is clipped")] = (2.0, 12.0)
    band: Annotated[Fraction, bits("probability that low and high frequencies are cut off")] = 0.0
    noise: Annotated[Fraction, bits("probability of white noise over the mixture, as of a poor microphone")] = 0.0
    hiss: Annotated[Decibels, bits("dB of the mixture over that noise")] = (15.0, 40.0)

    def __post_init__(self) -> None:
        for name in ("gains", "overdrive", "hiss"):
            _ascending(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Mixed(Parted, Source):
    """Speech in noise, mixed anew at each position."""

    seeded: ClassVar[bool] = True
    rate: Annotated[Rate | None, bits("samples of sound a second; the model's where absent")] = None
    seconds: Annotated[Seconds | None, bits("how long a sample is; the model's segment where absent")] = None
    snr: Annotated[Decibels, bits("dB of the speech over the noise")] = (-5.0, 15.0)
    level: Annotated[Decibels, bits("dB of the mixture's peak, 0 being full scale")] = (-20.0, -1.0)
    distort: Annotated[Distort, bits("what happens to speech and noise on their way")] = field(default_factory=Distort)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ascending("snr", self.snr)
        _ascending("level", self.level)
        if self.level[1] > 0:
            raise ValueError(f"level up to {self.level[1]:g} dB is above full scale")


@dataclass(frozen=True, kw_only=True)
class Folder(Parted):
    """Sound files of a folder. A stable hash of the path below it decides a file's part."""

    path: Annotated[str, bits("a folder, a pattern or a file")]
    include: Annotated[tuple[str, ...], MinLen(1), bits("patterns of file names within a folder")] = ("*.wav", "*.flac")
    key: Annotated[
        str | None,
        bits("a regular expression: its group in the path decides the part, so a speaker, say, is in one part only"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _pattern(self.key)


@dataclass(frozen=True, kw_only=True)
class Responses(Folder):
    """Impulse responses of rooms: sound files, or numpy arrays [samples] or [channels, samples]."""

    include: Annotated[tuple[str, ...], MinLen(1), bits("patterns of file names within a folder")] = (
        "*.wav",
        "*.flac",
        "*.npy",
    )
    array_rate: Annotated[Count | None, bits("samples a second of the arrays; null: those of the source")] = None


@dataclass(frozen=True, kw_only=True)
class SpeechFolders(Mixed):
    """Folders of speech, of noises and of the impulse responses of rooms; wav, flac. A sample is a file of speech."""

    factory: ClassVar[str] = "drivetrain.tasks.speech.mixtures:open_folders"
    kind: Annotated[Literal["speech"], bits("folders of speech, noises and responses")] = "speech"
    path: Annotated[str, bits("the speech: a folder, a pattern or a file")]
    include: Annotated[tuple[str, ...], MinLen(1), bits("patterns of file names within a folder")] = ("*.wav", "*.flac")
    key: Annotated[
        str | None,
        bits("a regular expression: its group in the path decides the part, so a speaker, say, is in one part only"),
    ] = None
    background: Annotated[Folder | None, bits("noises; null: none but what `distort` makes")] = None
    responses: Annotated[Responses | None, bits("rooms, for `distort.reverb`")] = None
    unreadable: Annotated[
        Literal["stop", "skip"], bits("a file that cannot be read ends the run, or is left out, counted and named")
    ] = "stop"

    @property
    def speech(self) -> Folder:
        """Where the speech lies."""
        # A source of its own, so that speech, noises and rooms are cut into parts by one rule.
        names = ("path", "include", "key", "part", "split", "by")
        return Folder(**{name: getattr(self, name) for name in names})

    def cut_by(self) -> tuple[Any, ...]:
        """What decides which file is in which part."""
        return *super().cut_by(), self.key

    def __post_init__(self) -> None:
        super().__post_init__()
        _pattern(self.key)
        if self.distort.reverb and self.responses is None:
            raise ValueError("distort.reverb needs responses")


@dataclass(frozen=True, kw_only=True)
class Harmonics(Mixed):
    """Voices that are computed: harmonics of a gliding pitch in syllables with formants, in coloured noise."""

    factory: ClassVar[str] = "drivetrain.tasks.speech.mixtures:open_harmonics"
    kind: Annotated[Literal["harmonics"], bits("computed voices in coloured noise")] = "harmonics"
    samples: Annotated[Count, bits("how many voices there are")] = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distort.reverb:
            raise ValueError("distort.reverb needs responses, which only kind speech has")


def _ascending(name: str, pair: Decibels) -> None:
    if pair[0] > pair[1]:
        raise ValueError(f"{name} goes from {pair[0]:g} up to {pair[1]:g}")


def _pattern(key: str | None) -> None:
    """Raises ValueError where a key is no regular expression with one group."""
    if key is None:
        return
    try:
        groups = re.compile(key).groups
    except re.error as error:
        raise ValueError(f"key {key!r} is no regular expression: {error}") from None
    if groups != 1:
        raise ValueError(f"key {key!r} has {groups} groups, and one decides")
