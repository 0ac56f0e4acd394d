"""Tensors through DLPack, of a framework implemented here, so that no other is required."""

import ctypes
import gc
import unittest

import pagelith

PAGE = 20_000
CPU, CUDA = 1, 2


class Structure(ctypes.Structure):
    """`DLManagedTensor` of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DESTRUCTORS = []
NEW = ctypes.pythonapi.PyCapsule_New
NEW.restype = ctypes.py_object
NEW.argtypes = [ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR]


class Tensor:
    """Elements of `bits` in its own memory, starting `skip` bytes after its beginning."""

    def __init__(self, shape, bits=16, strides=None, device=CPU, skip=0, name=b"dltensor", said=None):
        self.memory = ctypes.create_string_buffer(PAGE)
        self.said = device if said is None else said
        self.name, self.exported, self.dropped = name, 0, 0
        numbers = ctypes.c_int64 * len(shape)
        self.shape, self.strides = numbers(*shape), strides and numbers(*strides)
        pointer = ctypes.POINTER(ctypes.c_int64)
        self.structure = Structure(
            data=ctypes.addressof(self.memory),
            device_type=device,
            ndim=len(shape),
            code=4,
            bits=bits,
            lanes=1,
            shape=ctypes.cast(self.shape, pointer),
            strides=ctypes.cast(self.strides, pointer) if strides else None,
            byte_offset=skip,
        )
        self.destructor = DESTRUCTOR(self.drop)
        # A batch may keep the capsule longer than the program keeps the tensor.
        DESTRUCTORS.append(self.destructor)

    def drop(self, _capsule):
        self.dropped += 1

    def __dlpack_device__(self):
        return (self.said, 0)

    def __dlpack__(self):
        self.exported += 1
        return NEW(ctypes.addressof(self.structure), self.name, self.destructor)


def key(n):
    return pagelith.Key(pagelith.Namespace(model="m"), bytes([n]) * 32)


def content(n, length):
    return bytes((n + i * 7) % 251 for i in range(length))


class Tensors(unittest.TestCase):
    def setUp(self):
        self.store = pagelith.Store({"dram": {"bytes": "1MiB"}})
        self.addCleanup(self.store.close)

    def test_tensor_bytes_are_put_and_got(self):
        shapes = [
            Tensor([10, 500]),
            Tensor([10, 500], strides=[500, 1]),
            Tensor([1, 10, 1, 500], strides=[7, 500, 99, 1]),
            Tensor([5000], skip=64),
            Tensor([1250, 2], bits=32),
        ]
        for n, tensor in enumerate(shapes):
            skip = tensor.structure.byte_offset
            whole = content(n, 10_000)
            ctypes.memmove(ctypes.addressof(tensor.memory) + skip, whole, len(whole))
            self.assertTrue(all(self.store.put([key(n)], [tensor])), n)
            into = bytearray(len(whole))
            self.assertTrue(all(self.store.get([key(n)], [into])), n)
            self.assertEqual(into, whole, n)
            ctypes.memset(tensor.memory, 0, PAGE)
            self.assertTrue(all(self.store.get([key(n)], [tensor])), n)
            self.assertEqual(tensor.memory.raw[skip : skip + len(whole)], whole, n)
            self.assertEqual(tensor.memory.raw[skip + len(whole) :], bytes(PAGE - skip - len(whole)), n)

    def test_pieces_may_be_tensors(self):
        halves = [Tensor([2500]), b"between", Tensor([0]), Tensor([2500])]
        self.assertTrue(all(self.store.put([key(1)], [halves])))
        into = bytearray(10_007)
        self.assertTrue(all(self.store.get([key(1)], [into])))
        self.assertEqual(into, bytes(5000) + b"between" + bytes(5000))

    def test_tensor_is_kept_only_during_call(self):
        for n, and_then in enumerate(["hit", "miss", "refused"]):
            tensor = Tensor([5000])
            if and_then == "hit":
                self.store.put([key(n)], [bytes(10_000)])
            if and_then == "refused":
                with self.assertRaises(TypeError):
                    self.store.get([key(n), key(9)], [tensor, 5])
            else:
                self.store.get([key(n)], [tensor])
            gc.collect()
            self.assertEqual((tensor.exported, tensor.dropped), (1, 1), and_then)

    def test_unusable_tensor_is_refused_without_effect(self):
        self.store.put([key(1)], [content(1, 10_000)])
        refused = [
            (Tensor([10, 500], strides=[1, 10]), BufferError, "not contiguous"),
            (Tensor([10, 250], strides=[500, 1]), BufferError, "not contiguous"),
            (Tensor([10_000], bits=4), BufferError, "not whole bytes"),
            (Tensor([-1]), BufferError, "not contiguous"),
            (Tensor([2**62, 2**62]), BufferError, "not contiguous"),
            (Tensor([5000], device=CUDA), pagelith.InvalidError, "cuda:0 is not bound to this store"),
            (Tensor([5000], device=CUDA, said=CPU), pagelith.InvalidError, "not in host memory"),
            (Tensor([5000], name=b"used_dltensor"), ValueError, "PyCapsule_GetPointer"),
        ]
        for tensor, error, text in refused:
            with self.assertRaisesRegex(error, text):
                self.store.get([key(1)], [tensor])
            self.assertEqual(tensor.memory.raw, bytes(PAGE), text)
        tensor = Tensor([5000])
        with self.assertRaisesRegex(pagelith.InvalidError, "must not overlap"):
            self.store.get([key(1), key(1)], [tensor, tensor])


if __name__ == "__main__":
    unittest.main()
