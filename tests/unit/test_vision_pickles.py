"""Pickles that want memory, time or a lasting effect instead of code: each is refused in one sentence, at once."""

import copyreg
import pickle
import pickletools
import struct

import numpy as np
import pytest

from marginlens.errors import InputError
from marginlens.vision import plain_pickle
from marginlens.vision.plain_pickle import read_plain_pickle

DTYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n)R"
LAUGHS = 60  # doublings


def refused(tmp_path, content, sentence):
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_plain_pickle(tmp_path / "p", "data")
    assert str(caught.value).count("\n") == 0
    assert "must be a pickle of dicts, lists, bytes, text, numbers and plain arrays alone" in str(caught.value)


def doubled(pair, n=LAUGHS):
    """A value that holds the one before it twice, n times: a few hundred bytes for 2^n values."""
    return pair + b"".join(b"q" + bytes([k]) + b"h" + bytes([k]) + b"\x86" for k in range(n))


def test_values_named_over_and_over_are_refused(tmp_path):
    refused(tmp_path, b"\x80\x02" + doubled(b"]") + b".", "more values than it has bytes")


def test_a_key_that_takes_for_ever_to_hash_is_refused(tmp_path):
    refused(tmp_path, b"\x80\x02}" + doubled(b")") + b"Ns.", "other keys than text, bytes and whole numbers")
    refused(tmp_path, b"\x80\x02(" + doubled(b")") + b"Nd.", "other keys than text, bytes and whole numbers")
    refused(tmp_path, b"\x80\x02}(" + doubled(b")") + b"Nu.", "other keys than text, bytes and whole numbers")


def test_whole_numbers_with_one_hash_are_no_keys(tmp_path):
    many = {k * (2**61 - 1): None for k in range(3)}  # all have hash 0
    refused(tmp_path, pickle.dumps(many), "other keys than")


def test_a_value_that_holds_itself_is_refused(tmp_path):
    ring = []
    ring.append(ring)
    refused(tmp_path, pickle.dumps({b"labels": ring}), "a value that holds itself")


def test_deep_nesting_is_refused(tmp_path):
    refused(tmp_path, b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".", "which cannot be read")


def test_one_text_encoded_over_and_over_is_refused(tmp_path):
    text = b"X" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\x01"
    again = b"c_codecs\nencode\nh\x01\x85R"
    refused(tmp_path, b"\x80\x02(" + text + again * 500 + b"l.", "more bytes than it has")


def test_one_buffer_in_array_after_array_is_refused(tmp_path):
    buffer = b"B" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\x01"
    again = ARRAY + b"(K\x01M\xe8\x03\x85h\x02\x89h\x01tb"
    refused(tmp_path, b"\x80\x02(" + DTYPE + b"q\x02" + buffer + again * 100 + b"l.", "more bytes than it has")


@pytest.mark.parametrize(
    "claim",
    [
        b"\x96" + struct.pack("<Q", 2**36) + b".",  # a bytearray of 64 GiB
        b"\x8e" + struct.pack("<Q", 2**62) + b"ab.",  # bytes of 4 EiB
        ARRAY + b"(K\x01(J\xff\xff\xff\x7fJ\xff\xff\xff\x7ft" + DTYPE + b"\x89B\x01\x00\x00\x00atb.",
    ],
)
def test_sizes_that_are_only_claimed_take_no_memory(tmp_path, claim):
    refused(tmp_path, b"\x80\x04" + claim, "which cannot be read")


@pytest.mark.parametrize(
    "content", [b"Nr\xff\xff\xff\xff.", b"Np99999999999999\n.", b"\x95" + struct.pack("<Q", 2**62) + b"N."]
)
def test_memos_and_frames_are_no_larger_than_what_is_in_them(tmp_path, content):
    (tmp_path / "p").write_bytes(b"\x80\x04" + content)
    assert read_plain_pickle(tmp_path / "p", "data") is None


@pytest.mark.parametrize(
    "change",
    [
        b"c_codecs\nencode\nN}X\x0c\x00\x00\x00__defaults__Ns\x86b.",  # slots of a function
        b"cnumpy.core.multiarray\nscalar\n}X\x04\x00\x00\x00makeNsb.",
        b"cnumpy\ndtype\n}X\x04\x00\x00\x00fillNsb.",
        b"cnumpy\nndarray\nN}X\x04\x00\x00\x00makeNs\x86b.",
        b"}}X\x01\x00\x00\x00aNsb.",
        b"](NNeNb.",
        ARRAY + b"}X\x06\x00\x00\x00budgetNsb.",
    ],
)
def test_nothing_can_be_changed_but_arrays_being_read(tmp_path, change):
    refused(tmp_path, b"\x80\x02" + change, "a change of something that is no array")
    value = {"a": np.arange(3), "b": b"\xff"}
    (tmp_path / "p").write_bytes(pickle.dumps(value, protocol=2))
    assert read_plain_pickle(tmp_path / "p", "data")["b"] == b"\xff"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R.", "numpy.ndarray without numbers"),
        (b"cnumpy\ndtype\n" + doubled(b"]", 25) + b"\x85R.", "another dtype than numbers"),
        (b"cnumpy\ndtype\nX\x06\x00\x00\x00V9**99\x85R.", "which cannot be read"),
        (b"cnumpy\ndtype\nX\x08\x00\x00\x00(9999,)d\x85R.", "an array of dtype"),
        (b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.", "another encoding than latin1"),
        (b"c_codecs\nencode\n}R.", "a call of something that is no name"),
        (b"]\x85R.", "which cannot be read"),
        (b"N)R.", "a call of something that is no name"),
        (b"cnumpy.core.multiarray\nscalar\n" + DTYPE + b"B\x00\x00\x00\x00\x86R.", "a number that is an object"),
    ],
)
def test_stand_ins_refuse_what_numpy_never_gives_them(tmp_path, call, sentence):
    refused(tmp_path, b"\x80\x02" + call, sentence)


def test_extensions_registered_in_this_process_stay_out_of_reach(tmp_path):
    copyreg.add_extension("builtins", "eval", 240)
    try:
        pickle.loads(pickle.dumps(eval, protocol=2))  # now it is in the cache, where no name is asked for
        refused(tmp_path, b"\x80\x02\x82\xf0.", "which cannot be read")
    finally:
        copyreg.remove_extension("builtins", "eval", 240)


def test_opcodes_of_classes_sets_and_the_outside_are_not_known():
    unknown = {one.name for one in pickletools.opcodes if ord(one.code) not in plain_pickle._PlainUnpickler.dispatch}
    assert unknown == {
        *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"),
        *("EMPTY_SET", "ADDITEMS", "FROZENSET", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"),
    }
